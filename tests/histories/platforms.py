"""Requests to `plain` at the ports of SageMaker and Vertex AI, in the forms of the platforms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from tests.histories.board import Outcome
from tests.histories.http_client import HttpAsker, error_text, infer_body, infer_outcome, message
from tests.histories.kinds import WIDTH, Question


class PlatformAsker(HttpAsker):
    """Asks the default model: instances, CSV, arrays, and the v2 protocol."""

    def __init__(self, port: int, platform: str) -> None:
        super().__init__(port, "JSON")
        self._path = "/invocations" if platform == "SageMaker" else "/predict"
        self._is_sagemaker = platform == "SageMaker"

    def answers(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        return [self._ask(question, random) for question in questions]

    def _ask(self, question: Question, random: Random) -> Outcome:
        form = random.choice(("v2", "instances", "CSV", "binary")) if self._is_sagemaker else "instances"
        rows = question.inputs["IN"][1]
        match form:
            case "instances":
                body, media = json.dumps({"instances": self._instances(rows, random)}).encode(), "application/json"
            case "CSV":
                body = "\n".join(",".join(map(str, row)) for row in rows.tolist()).encode()
                media = "text/csv"
            case _:
                body, size = infer_body(question, "JSON" if form == "v2" else "binary", random)
                media = "application/json"
                if size is not None:
                    media = f"application/vnd.sagemaker-triton.binary+json;json-header-size={size}"
        accept = f"Accept: {random.choice(('application/json', 'text/csv'))}" if form == "CSV" else "Accept: */*"
        headers = [f"Content-Type: {media}", accept]
        self.connection.send(message(self._path, body, random, *headers, plain=True))
        status, fields, content = self.connection.response()
        if status != 200:
            return Outcome(status=status, error=error_text(content))
        if form in ("v2", "binary"):
            marker = "json-header-size="
            _, _, length = fields["content-type"].partition(marker)
            return infer_outcome(status, {"inference-header-content-length": length} if length else {}, content)
        return Outcome([{"OUT": _rows(fields["content-type"], content)}])

    def _instances(self, rows: Any, random: Random) -> list[Any]:
        return [{"IN": row} for row in rows.tolist()] if random.random() < 0.5 else rows.tolist()


def _rows(media: str, content: bytes) -> Any:
    if media.startswith("text/csv"):
        return np.array([line.split(",") for line in content.decode().split()], np.int64).astype(np.int32)
    found = json.loads(content)["predictions"]
    return np.array([row["OUT"] if isinstance(row, dict) else row for row in found], np.int32).reshape(-1, WIDTH)
