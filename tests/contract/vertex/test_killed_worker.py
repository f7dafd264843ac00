"""A container whose process with the models was killed: callers are told to come back, never that the model does not
exist.

Source: docs/spec/vertex.md sections A2 and B3; docs/processes.md "When a process dies".
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import Gate, add_scaled
from tests.contract.servers.processes import engine_of
from tests.contract.servers.session import session_members
from tests.contract.vertex.vertex_container import PREDICT, Answer, VertexContainer
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("http_workers"),
    pytest.mark.shapes("one-process", "front-ends"),
]

V2 = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
# More instances than a batch holds: the body becomes several requests.
MANY = json.dumps({"instances": [[1, 2, 3, 4]] * 40}).encode()
REDIRECT = {"X_Vertex_Ai_Triton_Redirect": "v2/models/cat/infer"}
CALLS: list[tuple[bytes, dict[str, str]]] = [(V2, {}), (MANY, {}), (V2, REDIRECT)]


def call(container: VertexContainer, body: bytes, headers: dict[str, str]) -> Answer | None:
    """The answer; None if the killed process had the connection, or the next one does not listen yet."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return container.ask("POST", PREDICT, body, Content_Type="application/json", **headers)
    return None


@pytest.mark.parametrize("default", ["", "cat"], ids=["only model", "named model"])
def test_callers_are_told_to_come_back_until_the_models_are_loaded_again(tmp_path: Path, default: str) -> None:
    gate = Gate(tmp_path / "models", "cat", 3)
    options = []
    if default:
        add_scaled(tmp_path / "models", "dog", 2)
        options = [f"--vertex-ai-default-model={default}"]
    with VertexContainer(tmp_path, tmp_path / "models", *options, ready=False) as container:
        gate.open()
        until(lambda: container.health_status() == 200, container.log_text)
        killed = engine_of(container)
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in session_members(container.process.pid), "the process is still there")
        for body, headers in CALLS:

            def loads(body: bytes = body, headers: dict[str, str] = headers) -> bool:
                answer = call(container, body, headers)
                if answer is None:
                    return False
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1"), answer
                return "still being loaded" in answer.error

            until(loads, "no caller is told that the models are being loaded")
        assert container.health_status() == 503
        gate.open()
        until(lambda: container.health_status() == 200, container.log_text)
        assert [answer.status for each in CALLS if (answer := call(container, *each))] == [200, 200, 200]
