"""The main process ends, or is asked to: front ends and engine go with it, in order, and nothing stays.

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
    undisturbed,
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
    """Requests in flight, all but two of them queued; what was answered is there at the end."""
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


# --- killed


def test_all_others_end_when_it_is_killed(repository: Path, tmp_path: Path) -> None:
    with RemoteServer(repository, tmp_path) as server:
        with Traffic(server):
            server.process.kill()
            server.assert_gone()
        server.was_killed = True


def test_all_others_end_when_it_is_killed_while_there_is_no_engine(repository: Path, tmp_path: Path) -> None:
    """The engine has nobody to start it again, and the directory nobody but the front ends to remove it."""
    with RemoteServer(repository, tmp_path) as server:
        engine = server.engine
        server.process.send_signal(signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        server.process.kill()
        server.assert_gone()
        server.was_killed = True


def test_all_others_end_when_it_is_killed_while_the_engine_loads(repository: Path, tmp_path: Path) -> None:
    with RemoteServer(repository, tmp_path, ready=False) as server:
        until(server.is_live, "no answer")
        server.process.kill()
        server.assert_gone()
        server.was_killed = True


def test_what_nobody_could_remove_goes_with_the_next_start(repository: Path, tmp_path: Path) -> None:
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


def test_two_servers_do_not_meet(repository: Path, tmp_path: Path) -> None:
    with RemoteServer(repository, tmp_path) as first, undisturbed(first):
        directory = private_directory(first)
        with RemoteServer(repository, make_folder(tmp_path / "second"), beside=first) as second:
            assert directory.exists()
            assert len(list(first.temporary.glob("trident-*"))) == 2
            second.kill_engine()
            second.wait_until_all_ready()
            assert_still_serves(second)
        assert directory.exists()


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


# --- asked to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_in_flight_is_answered_before_the_engine_stops(
    repository: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with RemoteServer(repository, tmp_path) as server:
        with asking(server, long_request()) as answers:
            server.process.send_signal(number)
            until(lambda: server.says("Handling signal"), "it did not notice")
            server.process.send_signal(number)  # changes nothing
        assert [status for status, _ in answers] == [200] * 4, answers
        assert server.ended() == 0
        log = server.log_text()
        assert log.rindex("Worker exiting") < log.index("cause: server exit")
        assert "Traceback" not in log


def test_a_model_that_is_stuck_ends_with_1(repository: Path, tmp_path: Path) -> None:
    with RemoteServer(repository, tmp_path, "--exit-timeout-secs=2") as server:
        with asking(server, long_request(FOR_EVER)) as answers:
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 1
            server.assert_gone()
            server.was_killed = True
        assert answers == []
    assert server.says("Exit timeout expired. Exiting immediately.")


def test_stopped_at_once_after_its_start(repository: Path, tmp_path: Path) -> None:
    """Whatever has been forked already, and whatever has not: no signal is lost on the way to it."""
    for wait in ("Starting gunicorn", "Booting worker", "thread plan"):
        with RemoteServer(repository, make_folder(tmp_path / wait.split()[0]), ready=False) as server:
            until(lambda: server.says(wait) or server.process.poll() is not None, "no start")  # noqa: B023
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 0, server.log_text()
