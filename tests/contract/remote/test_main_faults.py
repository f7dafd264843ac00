"""The main process is killed or stopped: front ends and engine end with it, in order, and leave nothing.

Source: docs/architecture.md section 5; docs/spec/server-options.md section 5.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.remote.remote_server import (
    FOR_EVER,
    LIMIT_S,
    Client,
    RemoteServer,
    Traffic,
    long_request,
    pending,
    private_directory,
)
from tests.contract.servers.session import session_members
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.unit import onnx_models
from tests.waiting import until

pytestmark = pytest.mark.slow

WAITING = "/v2/models/waiting/infer"
TWO_INSTANCES = "instance_group [ { count: 2 kind: KIND_CPU } ]"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    models = link_models(tmp_path / "models", "simple")
    onnx_models.write_version(onnx_models.waiting(), models, "waiting", TWO_INSTANCES)
    return models


@contextlib.contextmanager
def asking(server: RemoteServer, body: bytes, count: int = 4) -> Iterator[list[tuple[int, bytes]]]:
    """Send requests, of which two run and the others are queued. Yields the answers, which are complete on exit."""
    answers: list[tuple[int, bytes]] = []

    def ask() -> None:
        with Client(server) as client, contextlib.suppress(OSError, http.client.HTTPException):
            answers.append(client.ask("POST", WAITING, body))

    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(ask) for _ in range(count)]
        until(lambda: pending(server, "waiting") == count - 2, "they do not wait")
        yield answers
        for each in asked:
            each.result(LIMIT_S)


# --- the main process is killed


@pytest.mark.parametrize("loads", [False, True], ids=["under load", "while the engine loads"])
def test_all_processes_end_with_the_main_process(repository: Path, tmp_path: Path, loads: bool) -> None:
    with RemoteServer(repository, tmp_path, ready=not loads) as server:
        until(server.is_live, "no answer")
        with contextlib.nullcontext() if loads else Traffic(server):
            server.process.kill()
            server.assert_gone()
        server.was_killed = True


def test_front_ends_end_with_the_main_process_while_the_engine_is_down(repository: Path, tmp_path: Path) -> None:
    """Only the front ends are left to remove the directory."""
    with RemoteServer(repository, tmp_path) as server:
        engine = server.engine
        server.process.send_signal(signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        server.process.kill()
        server.assert_gone()
        server.was_killed = True


def test_next_start_removes_files_of_a_killed_server(repository: Path, tmp_path: Path) -> None:
    with RemoteServer(repository, tmp_path) as killed:
        abandoned = private_directory(killed)
        for member in session_members(killed.process.pid):
            os.kill(member, signal.SIGKILL)
        until(lambda: not session_members(killed.process.pid), "it lives on")
        killed.was_killed = True
        assert abandoned.exists()
        with RemoteServer(repository, make_folder(tmp_path / "next"), beside=killed) as following:
            assert not abandoned.exists()
            assert_still_serves(following)


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


# --- the server is stopped


def test_sigint_lets_requests_in_flight_finish_before_the_engine_stops(repository: Path, tmp_path: Path) -> None:
    with RemoteServer(repository, tmp_path) as server:
        with asking(server, long_request()) as answers:
            server.process.send_signal(signal.SIGINT)
            until(lambda: server.says("Handling signal"), "the signal is not handled")
            server.process.send_signal(signal.SIGINT)  # changes nothing
        assert [status for status, _ in answers] == [200] * 4, answers
        assert server.ended() == 0
        log = server.log_text()
        assert log.rindex("Worker exiting") < log.index("cause: server exit")
        assert "Traceback" not in log


def test_stuck_model_forces_exit_status_1(repository: Path, tmp_path: Path) -> None:
    with RemoteServer(repository, tmp_path, "--exit-timeout-secs=1") as server:
        with asking(server, long_request(FOR_EVER)) as answers:
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 1
            server.assert_gone()
            server.was_killed = True
        assert answers == []
    assert server.says("Exit timeout expired. Exiting immediately.")


def test_sigterm_during_the_start_ends_it(repository: Path, tmp_path: Path) -> None:
    """No process may lose the signal, whichever have been forked by then."""
    for wait in ("Starting gunicorn", "Booting worker", "thread plan"):
        with RemoteServer(repository, make_folder(tmp_path / wait.split()[0]), ready=False) as server:
            until(lambda: server.says(wait) or server.process.poll() is not None, "no start")  # noqa: B023
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 0, server.log_text()
