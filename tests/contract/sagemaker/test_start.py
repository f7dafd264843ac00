"""How a container starts, with `serve` as its only argument."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import environment_without
from tests.contract.servers.session import TRIDENT, kill_session, start_session
from tests.project import ROOT
from tests.waiting import until

MODELS = ROOT / "deploy" / "models"
# The platform kills 30 s after SIGTERM.
STOP_LIMIT_S = 25.0
LIMIT_S = 60.0
ROW = ",".join(str(number) for number in range(32))
ANSWER = ",".join([str(2 * n + 16) for n in range(16)] + ["-16"] * 16)


@contextlib.contextmanager
def running(arguments: list[str], variables: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`trident ...` in a new session, which is killed at the end."""
    environment = environment_without("SAGEMAKER_", "TRIDENT_", "AWS_") | dict(variables)
    process = start_session([TRIDENT, *arguments], log, env=environment)
    try:
        yield process
    finally:
        kill_session(process)


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_for_ping(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError):
            return ask(port, "GET", "/ping")[0] == 200
        return False

    until(lambda: answers() or process.poll() is not None, log.read_text)
    assert process.poll() is None, log.read_text()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_LIMIT_S) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("http_workers")
@pytest.mark.shapes("one-process", "front-ends", "two-engines")
def test_container_of_one_model_serves(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    variables = {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(MODELS),
    }
    log = tmp_path / "log"
    with running(["serve"], variables, log) as process:
        wait_for_ping(port, process, log)
        status, answer = ask(port, "POST", "/invocations", f"{ROW}\n{ROW}\n".encode(), Content_Type="text/csv")
        assert status == 200
        assert len(json.loads(answer)["predictions"]) == 2
        status, answer = ask(
            port, "POST", "/invocations", f"{ROW}\n{ROW}\n".encode(), Content_Type="text/csv", Accept="text/csv"
        )
        assert (status, answer.decode()) == (200, f"{ANSWER}\n{ANSWER}\n")
        assert ask(port, "GET", "/v2/health/ready")[0] == 404
        assert ask(port, "GET", "/models")[0] == 404
        status, page = ask(port, "GET", "/metrics")
        assert b'nv_inference_count{model="simple",version="1"} 4' in page
        assert json.loads(ask(port, "GET", "/execution-parameters")[1])["BatchStrategy"] == "MULTI_RECORD"
        stop(process)


@pytest.mark.slow
def test_port_outside_the_safe_range_ends_the_start(tmp_path: Path) -> None:
    port, other = free_ports(2)
    variables = {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{port}-{port}",
        "SAGEMAKER_TRITON_ALLOW_METRICS": "true",
        "SAGEMAKER_TRITON_METRICS_PORT": str(other),
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(MODELS),
    }
    log = tmp_path / "log"
    with running(["serve"], variables, log) as process:
        assert process.wait(LIMIT_S) == 1
    assert f"at port {other}, allowed port range is [{port}, {port}]" in log.read_text()
