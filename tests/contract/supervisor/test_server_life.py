"""The life of a server: start, phases, logs, metrics, restart, stop."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import Gate
from tests.contract.remote.remote_server import readiness, undisturbed
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import session_members
from tests.contract.servers.simple_model import PATH, good_body, link_models
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("http_workers")

LIMIT_S = 60.0


def answers(server: ServerProcess, path: str) -> bool:
    try:
        server.request("GET", path)
    except OSError:
        return False
    return True


@pytest.mark.shapes("one-process", "front-ends")
def test_port_opens_at_once_and_readiness_reports_the_progress(tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    gate = Gate(repository, "slow", 2.0)
    with ServerProcess(repository, tmp_path / "log", "--shutdown-grace-secs=0", ready=False) as server:
        until(lambda: answers(server, "/v2/health/live"), "no answer")
        seen: list[dict[str, object]] = []

        def loading() -> bool:
            status, _, body = server.request("GET", "/v2/health/ready")
            if status == 400:
                seen.append(json.loads(body))
            return any(entry.get("model") == "slow" for entry in seen)

        until(loading, "never seen loading")
        assert seen[-1]["phase"] == "loading"
        assert seen[-1]["total"] == 2
        assert server.request("GET", "/v2/health/live")[0] == 200
        # A loaded model serves while the other one loads.
        until(lambda: server.request("POST", PATH, good_body())[0] == 200, "simple does not serve")
        gate.open()
        server.wait_until_ready()


def test_broken_model_ends_the_start_and_is_named(tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple", "badcfg")
    server = ServerProcess(repository, tmp_path / "log", ready=False)
    server.__enter__()
    try:
        assert server.process.wait(LIMIT_S) == 1
        assert session_members(server.process.pid) == []
    finally:
        server.kill()
    log = server.log_text()
    assert "failed to load 'badcfg' version 1: Invalid argument: unexpected inference input 'WRONG'" in log
    assert '] "error: creating server: Internal - failed to load all models (badcfg: ' in log.splitlines()[-1]
    assert "Traceback" not in log


def test_other_models_serve_without_exit_on_error(tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple", "badcfg")
    options = ("--exit-on-error=false", "--shutdown-grace-secs=0")
    with ServerProcess(repository, tmp_path / "log", *options, ready=False) as server:
        until(lambda: answers(server, "/v2/health/live"), "no answer")
        until(lambda: server.request("POST", PATH, good_body())[0] == 200, "simple does not serve")
        # The broken model may fail later.
        until(lambda: "badcfg" in readiness(server).get("failures", {}), "what fails is not named")
        assert server.request("GET", "/v2/health/ready")[0] == 400


@pytest.mark.shapes("one-process", "front-ends")
def test_start_logs_models_and_addresses_and_metrics_count_requests(tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    with ServerProcess(repository, tmp_path / "log", "--cache-directory=/x", "--shutdown-grace-secs=0") as server:
        until(lambda: "| Metrics | " in server.log_text(), "no addresses")
        for _ in range(3):
            assert server.request("POST", PATH, good_body())[0] == 200
        server.request("GET", "/v2")
        status, headers, page = server.request("GET", "/metrics", port=server.metrics_port)
        assert server.stop() == 0
        log = server.log_text()
    # Tools wait for these lines.
    for line in (
        f"Started HTTPService at 127.0.0.1:{server.http_port}",
        f"Started Metrics Service at 127.0.0.1:{server.metrics_port}",
        "Waiting for in-flight requests to complete.",
        "Found 0 model versions that have in-flight inferences",
    ):
        assert log.count(line) == 1, line
    assert "| simple | 1       | READY | cpu    | CPUExecutionProvider |" in log
    assert f"| HTTP    | 127.0.0.1:{server.http_port} |" in log
    assert "without effect here: --cache-directory" in log
    assert "thread plan: " in log
    assert f"POST {PATH}" not in log, "the access log is on by default"
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    lines = page.decode().splitlines()
    assert 'nv_inference_request_success{model="simple",version="1"} 3' in lines
    assert any(line.startswith("flask_http_request_duration_seconds_count{") and "/v2" in line for line in lines)


@pytest.mark.shapes("one-process", "front-ends")
def test_json_log_has_one_object_per_line(tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    options = ("--log-format=json", "--log-verbose=1", "--log-access=true", "--shutdown-grace-secs=0")
    with ServerProcess(repository, tmp_path / "log", *options) as server:
        assert server.request("POST", PATH, b"{")[0] == 400
        assert server.request("POST", PATH, good_body())[0] == 200
    events = [json.loads(line) for line in server.log_text().splitlines()]
    refusals = [event for event in events if event["logger"] == "trident.http" and event.get("code") == 400]
    assert [event["level"] for event in refusals].count("INFO") >= 1
    assert any("200" in event["message"] for event in events if event["logger"] == "trident.access")
    native = [event for event in events if event["logger"] == "trident.onnxruntime"]
    assert len(native) > 10
    assert {event["level"] for event in native} == {"VERBOSE"}
    # What belongs to no session is "Default", as ONNX Runtime calls it.
    assert "simple" in {event["session"] for event in native} <= {"simple", "Default"}


def unready_body(server: ServerProcess) -> bytes:
    """The body of the readiness probe; empty while the server is ready."""
    status, _, body = server.request("GET", "/v2/health/ready")
    return body if status == 503 else b""


@pytest.mark.shapes("one-process", "front-ends")
@pytest.mark.parametrize("to_all", [False, True], ids=["to-main", "to-all"])
def test_sigterm_fails_readiness_at_once_and_serves_through_the_grace(tmp_path: Path, to_all: bool) -> None:
    """systemd and dumb-init send the signal to every process at once, others to the main process."""
    repository = link_models(tmp_path / "m", "simple")
    with ServerProcess(repository, tmp_path / "log", "--shutdown-grace-secs=5") as server:
        with undisturbed(server):
            for process in session_members(server.process.pid) if to_all else [server.process.pid]:
                os.kill(process, signal.SIGTERM)
            # Of one request: another front end may learn of the signal a moment later.
            body = until(lambda: unready_body(server), "still ready")
            assert json.loads(body) == {"error": "Server exiting"}
        assert server.process.wait(LIMIT_S) == 0
