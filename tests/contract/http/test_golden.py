"""Exchanges recorded with a real Triton, replayed against this server.

The status, the content type and the body must be equal, whatever the shape of the server. JSON bodies are compared by
value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

pytestmark = pytest.mark.shapes("one-process", "front-ends")

GOLDEN = ROOT / "tests" / "golden"
# tests/contract/lifecycle/test_repository_control.py replays the sections of repository control.
SECTIONS = ("Server, health, metadata", "Infer: success forms", "Infer: errors", "Trace / logging")
MUST_FAIL = ("broken", "badcfg")

Exchange = dict[str, Any]


def exchanges() -> list[Exchange]:
    lines = (GOLDEN / "exchanges.jsonl").read_text().splitlines()
    return [exchange for exchange in map(json.loads, lines) if exchange["section"] in SECTIONS]


# The exchanges that this server answers differently on purpose: the status, and a part of the body.
OTHERWISE: dict[int, tuple[int, str]] = {
    14: (404, "Request for unknown model: 'simple' version 9 is not found"),
    15: (404, "Request for unknown model: 'nope' is not found"),
    51: (400, "input 'IN' of model 'str_id' has strings that are not UTF-8"),
    75: (400, "failed to parse the request JSON buffer: "),
    96: (400, "Failed to parse 'data' field: shape does not match true shape"),
    105: (400, "element 0 of input 'INPUT0' is 3000000000, which INT32 cannot hold"),
    120: (400, "must specify valid 'Infer-Header-Content-Length' in request header"),
    121: (400, "Unable to parse Inference-Header-Content-Length, got: abc"),
    127: (400, "failed to decompress the request body"),
    164: (400, "unknown trace level 'BOGUS'"),
    165: (400, "unknown trace setting 'bogus'"),
    169: (400, "unknown log setting 'bogus'"),
}
# Malformed JSON and missing or mistyped fields are the client's fault: 400 with Triton's text, where Triton says 500.
CLIENTS_FAULT = {55, 56, 64, 65, 76, 78, 80, 88, 90, 99, 103, 104, 108, 170}


@pytest.fixture(scope="module")
def golden_server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("golden")
    for model in (GOLDEN / "models").iterdir():
        if model.name not in MUST_FAIL:
            (repository / model.name).symlink_to(model)
    with ServerProcess(repository, tmp_path_factory.mktemp("log") / "log", "--shutdown-grace-secs=0") as running:
        yield running


@pytest.mark.parametrize("exchange", exchanges(), ids=lambda exchange: f"{exchange['n']}-{exchange['note']}")
def test_answer_is_that_of_triton(golden_server: ServerProcess, exchange: Exchange) -> None:
    port = golden_server.metrics_port if exchange["port"] == 2 else golden_server.http_port
    body = base64.b64decode(exchange["req_body_b64"])
    status, headers, answer = golden_server.request(
        exchange["method"], exchange["path"], body or None, exchange["req_headers"], port=port
    )
    if exchange["n"] in OTHERWISE:
        expected_status, text = OTHERWISE[exchange["n"]]
        assert status == expected_status
        assert text in json.loads(answer)["error"]
        return
    recorded_status = int(exchange["status"].split()[0])
    assert status == (400 if exchange["n"] in CLIENTS_FAULT else recorded_status)
    assert headers["Content-Type"] == exchange["resp_headers"].get("Content-Type")
    assert_same_body(exchange, headers, answer)


def assert_same_body(exchange: Exchange, headers: Any, answer: bytes) -> None:
    recorded = base64.b64decode(exchange["resp_body_b64"])
    if headers["Content-Encoding"]:
        assert headers["Content-Encoding"] == exchange["resp_headers"]["Content-Encoding"]
        return
    recorded_split = int(exchange["resp_headers"].get("Inference-Header-Content-Length", len(recorded)))
    split = int(headers["Inference-Header-Content-Length"] or len(answer))
    assert answer[split:] == recorded[recorded_split:]
    if not recorded or not is_json(recorded[:recorded_split]):
        assert answer == recorded
        return
    ours, theirs = json.loads(answer[:split]), json.loads(recorded[:recorded_split])
    if list(theirs) == ["error"]:
        ours.pop("hint", None)  # this server's own member
    if "extensions" in theirs:
        assert ours.pop("version")
        theirs.pop("version")
        assert set(ours.pop("extensions")) == set(theirs.pop("extensions"))
    assert ours == theirs


def is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
