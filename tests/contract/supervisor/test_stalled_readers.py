"""A server whose log is not read: it serves and stops normally, and logs afterwards how many lines it dropped.

Source: docs/spec/trace-and-log.md "In Trident".
"""

from __future__ import annotations

import http.client
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.python.python_models import ADD_SUB, write_model
from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import from_each
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import PATH, assert_still_serves, good_body
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

REQUESTS = 500
CLIENTS = 4
# Of each line of the access log, so that few requests fill the pipe and what waits for it.
LONG_QUERY = "x" * 1000
# Far below the time that a supervisor waits before it kills, far above what a busy machine takes.
STOP_S = 30.0


class StalledPipe:
    """A named pipe that has a reader, which does not read until `text` is called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._read = b""

    def text(self) -> str:
        """Everything that was written so far."""
        try:
            while found := os.read(self._reader, 1 << 16):
                self._read += found
        except BlockingIOError:
            pass
        return self._read.decode()

    def close(self) -> None:
        os.close(self._reader)


class SilentServer(ServerProcess):
    """Its output is a pipe; reading it would let it go on."""

    def log_text(self) -> str:
        return "(the log is a pipe that is not read)"


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[StalledPipe]:
    made = StalledPipe(tmp_path / "pipe")
    yield made
    made.close()


def ask_many(server: ServerProcess, body: bytes, status: int, count: int = REQUESTS) -> None:
    """Several connections, so that every front end has some."""
    clients = [http.client.HTTPConnection(HOST, server.http_port, timeout=60) for _ in range(CLIENTS)]
    for number in range(count):
        client = clients[number % CLIENTS]
        client.request("POST", f"{PATH}?{LONG_QUERY}", body)
        response = client.getresponse()
        response.read()
        assert response.status == status
    for client in clients:
        client.close()


def dropped_after_many(server: ServerProcess) -> float:
    ask_many(server, good_body(), 200)
    return server.metric("trident_log_lines_dropped_total")


def stop_in_time(server: ServerProcess) -> None:
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < STOP_S


def test_server_serves_and_stops_while_its_log_pipe_is_full(
    http_workers: str, shipped_models: Path, pipe: StalledPipe
) -> None:
    options = ("--shutdown-grace-secs=0", "--log-access=true")
    with SilentServer(shipped_models, pipe.path, *options) as server:
        assert server.metric("trident_log_lines_dropped_total") == 0
        ask_many(server, b"{}", 400)
        until(lambda: dropped_after_many(server))
        assert_still_serves(server)
        assert server.request("GET", "/v2/health/ready")[0] == 200
        count = server.metric("trident_log_lines_dropped_total")

        def told() -> int:
            """With a reader there is room, and the next line of a front end is behind what it has dropped."""
            from_each(server, lambda: ask_many(server, good_body(), 200, CLIENTS))
            return sum(map(int, re.findall(r"(\d+) log lines were dropped", pipe.text())))

        until(lambda: told() >= count, lambda: f"{told()} of {count}")
        server.stop()
        assert "Exiting" not in pipe.text()


def test_python_model_prints_faster_than_the_log_is_read(http_workers: str, pipe: StalledPipe, tmp_path: Path) -> None:
    printing = "print('a line of the model\\n' * 5000)\n    responses = []"
    write_model(tmp_path / "m", "simple", ADD_SUB.replace("responses = []", printing))
    with SilentServer(tmp_path / "m", pipe.path, "--shutdown-grace-secs=0") as server:
        for _ in range(10):
            assert_still_serves(server)
        assert until(lambda: server.metric("trident_log_lines_dropped_total")) > 0
        stop_in_time(server)


@pytest.mark.parametrize("option", ["--log-file={}", "--trace-config=triton,file={}"])
def test_server_serves_and_stops_while_its_log_file_is_a_full_pipe(
    http_workers: str, shipped_models: Path, pipe: StalledPipe, tmp_path: Path, option: str
) -> None:
    options = (option.format(pipe.path), "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", "--log-access=all")
    given = options if "trace" in option else (options[0], options[-1])
    with ServerProcess(shipped_models, tmp_path / "console", "--shutdown-grace-secs=0", *given) as server:
        ask_many(server, good_body(), 200)
        assert_still_serves(server)
        stop_in_time(server)
