"""The recorded exchanges of repository control, replayed in order against a server in explicit mode.

The status, the content type and the body must be equal, except for the path of the repository.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

GOLDEN = ROOT / "tests" / "golden"
RECORDED_REPOSITORY = "/models"
NOT_LOADED_AT_START = {"badcfg", "broken"}
LIMIT_S = 30.0
# Readiness of a missing model: this server gives the error of a later Triton.
OTHERWISE = {142: (404, {"error": "Request for unknown model: 'cls' has no available versions"})}
UNLOADED = {"state": "UNAVAILABLE", "reason": "unloaded"}

Exchange = dict[str, Any]


def exchanges() -> list[Exchange]:
    lines = (GOLDEN / "exchanges.jsonl").read_text().splitlines()
    return [exchange for exchange in map(json.loads, lines) if exchange["section"] == "Repository"]


@pytest.fixture(scope="module")
def explicit_server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    names = sorted({model.name for model in (GOLDEN / "models").iterdir()} - NOT_LOADED_AT_START)
    options = ["--shutdown-grace-secs=0", "--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    with ServerProcess(GOLDEN / "models", tmp_path_factory.mktemp("log") / "log", *options) as running:
        yield running


def send(server: ServerProcess, exchange: Exchange) -> tuple[int, Any, bytes]:
    body = base64.b64decode(exchange["req_body_b64"])
    return server.request(exchange["method"], exchange["path"], body or None, exchange["req_headers"])


def test_recorded_section_is_answered_as_by_triton(explicit_server: ServerProcess) -> None:
    recorded = exchanges()
    assert len(recorded) == 21
    for exchange in recorded:
        status, headers, answer = send(explicit_server, exchange)
        expected = base64.b64decode(exchange["resp_body_b64"])
        deadline = time.monotonic() + LIMIT_S
        # An unload is answered when it begins, and Triton was asked during it. Wait for its end.
        while b"UNLOADING" in answer and time.monotonic() < deadline:
            status, headers, answer = send(explicit_server, exchange)
        if exchange["n"] in OTHERWISE:
            assert (status, meaning(answer.decode())) == OTHERWISE[exchange["n"]]
            continue
        assert status == int(exchange["status"].split()[0]), (exchange["n"], answer)
        assert headers["Content-Type"] == exchange["resp_headers"].get("Content-Type"), exchange["n"]
        ours = answer.decode().replace(str(GOLDEN / "models"), RECORDED_REPOSITORY)
        assert meaning(ours) == meaning(expected.decode()), exchange["n"]


def meaning(text: str) -> object:
    document = json.loads(text) if text else None
    if isinstance(document, dict) and "error" in document:
        return {"error": document["error"]}  # this server adds a hint
    if isinstance(document, list):
        return [UNLOADED | {"name": i["name"], "version": i["version"]} if is_leaving(i) else i for i in document]
    return document


def is_leaving(item: dict[str, str]) -> bool:
    return item.get("state") == "UNLOADING"
