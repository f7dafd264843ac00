"""Requests to OpenAI's routes: embeddings, and texts that come whole or as events."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from tests.histories.board import Outcome
from tests.histories.http_client import HttpAsker, error_text, message
from tests.histories.kinds import Question

PATHS = {"embeddings": "/v1/embeddings", "completions": "/v1/completions", "chat": "/v1/chat/completions"}


class OpenAIAsker(HttpAsker):
    def __init__(self, port: int, route: str) -> None:
        super().__init__(port, "JSON")
        self._route = route

    def answers(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        return [self._ask(question, random) for question in questions]

    def _ask(self, question: Question, random: Random) -> Outcome:
        ((_, array),) = question.inputs.values()
        texts = [element.decode() for element in array.reshape(-1)]
        is_streamed = self._route != "embeddings" and random.random() < 0.5
        content: dict[str, Any] = {"stream": is_streamed}
        match self._route:
            case "embeddings":
                content = {"input": texts, "encoding_format": random.choice(("float", "base64"))}
            case "completions":
                content["prompt"] = texts[0]
            case _:
                content["messages"] = [{"role": "user", "content": texts[0]}]
        body = json.dumps({"model": question.kind.name, **content}).encode()
        self.connection.send(message(PATHS[self._route], body, random))
        status, _, found = self.connection.response()
        if status != 200:
            return Outcome(status=status, error=error_text(found))
        if is_streamed:
            return _streamed(found)
        document = json.loads(found)
        if self._route == "embeddings":
            return Outcome([{"embedding": np.array([_vector(each["embedding"]) for each in document["data"]])}])
        (choice,) = document["choices"]
        return _said(choice["text"] if "text" in choice else choice["message"]["content"])


def _vector(found: Any) -> Any:
    if isinstance(found, str):
        return np.frombuffer(base64.b64decode(found), "<f4")
    return np.array(found, np.float32)


def _said(text: str) -> Outcome:
    return Outcome([{"OUT": np.array([text.encode()], np.object_)}])


def _streamed(body: bytes) -> Outcome:
    events = [line.removeprefix("data: ") for line in body.decode().split("\n") if line]
    ends = [at for at, event in enumerate(events) if event == "[DONE]"]
    documents = [json.loads(event) for event in events if event != "[DONE]"]
    for document in documents:
        if "error" in document:
            return Outcome(status=500, error=str(document["error"]))
    choices = [choice for document in documents for choice in document["choices"]]
    found = _said("".join(each["text"] if "text" in each else each["delta"].get("content") or "" for each in choices))
    reasons = [each.get("finish_reason") for each in choices]
    found.finals = len(ends) if reasons.count("stop") == 1 and reasons[-1] == "stop" else 0
    found.after = len(events) - 1 - ends[0] if ends else 0
    return found
