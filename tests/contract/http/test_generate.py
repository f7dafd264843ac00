"""generate and generate_stream on a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.contract.servers.server import ServerProcess

EVENTS = "text/event-stream; charset=utf-8"
ONES = [1] * 16
LIMIT_S = 30


def post(server: ServerProcess, path: str, document: Any, **headers: str) -> requests.Response:
    url = f"http://{server.address}/v2/models/{path}"
    return requests.post(url, json=document, headers=headers, timeout=LIMIT_S)


def test_generate_answers_with_one_object(server: ServerProcess) -> None:
    answer = post(server, "simple/generate", {"INPUT0": list(range(16)), "INPUT1": ONES, "id": "r1"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json() == {
        "OUTPUT0": list(range(1, 17)),
        "OUTPUT1": list(range(-1, 15)),
        "id": "r1",
        "model_name": "simple",
        "model_version": "1",
    }


def test_generate_stream_answers_with_an_event(server: ServerProcess) -> None:
    answer = post(server, "simple/versions/1/generate_stream", {"INPUT0": ONES, "INPUT1": ONES})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, EVENTS)
    twos, noughts = ",".join("2" * 16), ",".join("0" * 16)
    text = f'{{"OUTPUT0":[{twos}],"OUTPUT1":[{noughts}],"model_name":"simple","model_version":"1"}}'
    assert answer.text == f"data: {text}\n\n"


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("path", "document", "status", "text"),
    [
        ("simple", {"INPUT0": ONES}, 400, "expected 2 inputs but got 1 inputs for model 'simple'"),
        ("simple", {"INPUT0": ONES, "INPUT1": "a"}, 400, "The schema can not convert input 'INPUT1' to tensor"),
        ("simple", [], 400, "attempt to get members for non-object"),
        ("none", {}, 404, "Request for unknown model: 'none' is not found"),
        ("simple/versions/7", {}, 404, "'simple' version 7 is not found"),
    ],
)
def test_what_is_wrong_with_a_request_is_json(
    server: ServerProcess, route: str, path: str, document: Any, status: int, text: str
) -> None:
    answer = post(server, f"{path}/{route}", document)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/json")
    assert text in answer.json()["error"]
    assert post(server, "simple/generate", {"INPUT0": ONES, "INPUT1": ONES}).status_code == 200


def test_a_restricted_group_needs_its_key(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    with ServerProcess(shipped_models, tmp_path / "log", "--http-restricted-api=inference:key=secret") as server:
        document = {"INPUT0": ONES, "INPUT1": ONES}
        for route in ("simple/generate", "simple/generate_stream"):
            assert post(server, route, document).status_code == 403
            assert post(server, route, document, key="secret").status_code == 200
