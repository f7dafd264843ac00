"""A container under load: probes, limits, callers that disconnect, and SIGTERM.

Source: docs/spec/vertex.md sections A2, A4 and B3, D points 6 and 10; docs/processes.md "When a process dies".
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.lifecycle.changing_models import Gate, add_scaled
from tests.contract.platforms.container import LIMIT_S
from tests.contract.servers.processes import engine_of
from tests.contract.servers.session import session_members
from tests.contract.vertex.vertex_container import PREDICT, Answer, VertexContainer
from tests.unit.onnx_models import waiting, write_version
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

# Rounds of the model `waiting`: no time, a part of a second, and more than a second on any machine.
QUICK, MEDIUM, LONG = 1, 300_000, 1_000_000
_ALONE = "instance_group [ { count: 1 kind: KIND_CPU } ]"


@contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[VertexContainer]:
    """A container of `waiting`, which runs one request at a time for the rounds it asks for."""
    write_version(waiting(), folder / "models", "waiting", _ALONE)
    with VertexContainer(folder, folder / "models", *arguments, **variables) as container:
        yield container


def rounds(count: int) -> bytes:
    return json.dumps({"instances": [[count]]}).encode()


def counts(container: VertexContainer) -> int:
    """The executions of the model `waiting`."""
    (statistics,) = container.redirected("v2/models/waiting/stats").document["model_stats"]
    executions: int = statistics["execution_count"]
    return executions


def pending(container: VertexContainer) -> int:
    """The requests in the queue of the model `waiting`."""
    page = container.redirected("metrics").body.decode()
    found = re.search(r'^nv_inference_pending_request_count{model="waiting",version="1"} (\d+)', page, re.MULTILINE)
    assert found, page
    return int(found[1])


# --- limits


def test_timeout_is_a_503_and_cancels_queued_requests(tmp_path: Path) -> None:
    with serving(tmp_path, "--vertex-ai-timeout-secs=0.5") as container:
        until(lambda: container.post(rounds(QUICK)).status == 200, container.log_text)
        with ThreadPoolExecutor(5) as pool:
            late = [pool.submit(container.post, rounds(LONG)) for _ in range(4)]
            many = pool.submit(container.post, {"instances": [[LONG]] * 20})
            answers = [each.result(LIMIT_S) for each in (*late, many)]
        for answer in answers:
            assert (answer.status, answer.error) == (503, "there was no answer within 0.5 seconds")
            assert "--vertex-ai-timeout-secs" in answer.headers["Trident-Hint"]
        # The request that runs at the timeout finishes; queued requests do not start.
        until(lambda: container.post(rounds(QUICK)).status == 200, container.log_text)
        assert counts(container) < 12  # of 24
        assert container.health_status() == 200


# --- the engine process was killed: callers get 503 and never 404


V2 = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
# More instances than a batch holds: the body becomes several requests.
MANY = json.dumps({"instances": [[1, 2, 3, 4]] * 40}).encode()
REDIRECT = {"X_Vertex_Ai_Triton_Redirect": "v2/models/cat/infer"}
CALLS: list[tuple[bytes, dict[str, str]]] = [(V2, {}), (MANY, {}), (V2, REDIRECT)]


def answer_of(container: VertexContainer, body: bytes, headers: dict[str, str]) -> Answer | None:
    """The answer; None if the killed process had the connection, or the next one does not listen yet."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return container.ask("POST", PREDICT, body, Content_Type="application/json", **headers)
    return None


@pytest.mark.shapes("one-process", "front-ends")
@pytest.mark.parametrize("default", ["", "cat"], ids=["only model", "named model"])
def test_calls_get_503_with_retry_after_until_models_are_reloaded(tmp_path: Path, default: str) -> None:
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
                answer = answer_of(container, body, headers)
                if answer is None:
                    return False
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1"), answer
                return "still being loaded" in answer.error

            until(loads, "no caller is told that the models are being loaded")
        assert container.health_status() == 503
        gate.open()
        until(lambda: container.health_status() == 200, container.log_text)
        assert [answer.status for each in CALLS if (answer := answer_of(container, *each))] == [200, 200, 200]


# --- the end


def test_sigterm_fails_the_probe_at_once_and_serves_through_the_grace(tmp_path: Path) -> None:
    """Some requests run, others are queued, and new ones are accepted until the ports close."""
    with serving(tmp_path, TRIDENT_SHUTDOWN_GRACE_SECS="5") as container:
        with ThreadPoolExecutor(4) as pool:
            taken: list[Future[Any]] = [pool.submit(container.predictions, [[MEDIUM]]) for _ in range(3)]
            until(lambda: pending(container) >= 2, container.log_text)
            container.process.send_signal(signal.SIGTERM)
            until(lambda: container.health().status == 503, container.log_text)
            assert container.health().document["phase"] == "exiting"
            assert container.accepts()
            assert [each.result(LIMIT_S) for each in taken] == [[[MEDIUM]]] * 3
        assert container.stop() == 0, container.log_text()
