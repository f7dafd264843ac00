"""The real server in its own process, for tests that talk to it over a socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import TRIDENT, kill_session, session_members, start_session
from tests.project import ROOT
from tests.waiting import quiet_text, until

STOP_LIMIT_S = 45.0
# The server's variables for its shape, which a fixture sets.
HTTP_WORKERS = "TRIDENT_HTTP_WORKERS"
ENGINES = "TRIDENT_ENGINES"


def environment_without(*prefixes: str) -> dict[str, str]:
    """This process's environment without variables that begin with `prefixes`, and without proxies.

    HTTP_WORKERS and ENGINES always stay.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in (HTTP_WORKERS, ENGINES) or (not name.startswith(prefixes) and not name.lower().endswith("_proxy"))
    }


def shared_directories(arbiter: int) -> list[Path]:
    """The directories that the processes of one server share. `arbiter` is its main process."""
    return list(Path(tempfile.gettempdir()).glob(f"trident-{arbiter}-*"))


class ServerProcess:
    """`trident serve` with a repository. A context manager: ready on entry; on exit it stops and must leave nothing.

    The server leads its own session, by which its processes are found. `log` is the file of its output. `repository`
    may be a URI; the attribute `repository` is then meaningless. `environment` replaces that of this process.
    """

    def __init__(
        self,
        repository: Path | str,
        log: Path,
        *options: str,
        ready: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.repository = Path(repository)
        self.location = str(repository)
        self.log = log
        self.options = options
        self.ready = ready
        self.environment = environment
        self.was_killed = False
        self.http_port, self.metrics_port, self.grpc_port = free_ports(3)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.http_port}"

    @property
    def command(self) -> list[str]:
        return [
            TRIDENT,
            "serve",
            f"--model-repository={self.location}",
            f"--http-address={HOST}",
            f"--http-port={self.http_port}",
            f"--metrics-port={self.metrics_port}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.grpc_port}",
            *self.options,
        ]

    def __enter__(self) -> Self:
        self.process = start_session(self.command, self.log, cwd=ROOT, env=self.environment)
        try:
            if self.ready:
                self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self.was_killed:
            self.kill()
            return
        try:
            status = self.stop()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running {STOP_LIMIT_S} s after SIGTERM\n{self.log_text()}") from None
        finally:
            left = session_members(self.process.pid)
            files = shared_directories(self.process.pid)
            self.kill()
        assert status == 0, f"exit status {status}\n{self.log_text()}"
        assert left == [], f"processes left behind: {left}\n{self.log_text()}"
        assert files == [], f"files left behind: {files}\n{self.log_text()}"

    def wait_until_ready(self) -> None:
        """Wait until /v2/health/ready answers 200. AssertionError with the log if the server ends or is too late."""
        until(lambda: self._is_ready() or self.process.poll() is not None, self.log_text)
        status = self.process.poll()
        assert status is None, f"ended with status {status} before it was ready\n{self.log_text()}"

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/v2/health/ready")[0] == 200
        return False

    def stop(self) -> int:
        """Send SIGTERM. Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)

    def kill(self) -> None:
        """Kill all its processes and remove their directories."""
        self.was_killed = True
        kill_session(self.process)
        for directory in shared_directories(self.process.pid):
            shutil.rmtree(directory)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        port: int | None = None,
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a request on a new connection. Returns status, headers and body."""
        connection = http.client.HTTPConnection(HOST, port or self.http_port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, document: Any = None) -> Any:
        """The JSON answer to a request that must succeed."""
        body = None if document is None else json.dumps(document).encode()
        status, _, answer = self.request(method, path, body, {"Content-Type": "application/json"})
        assert status == 200, answer
        return json.loads(answer) if answer else None

    def metric(self, name: str, *labels: str) -> float:
        """The sum of a metric's series with these labels, from the page of any front end."""
        page = self.request("GET", "/metrics", port=self.metrics_port)[2].decode()
        found = [line for line in page.splitlines() if line.startswith(name) and all(label in line for label in labels)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def log_text(self) -> str:
        return quiet_text(self.log)
