"""A container as a platform starts it: `trident serve` in an environment of variables."""

from __future__ import annotations

import contextlib
import http.client
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import environment_without
from tests.contract.servers.session import TRIDENT, kill_session, session_members, start_session
from tests.waiting import quiet_text, until

LIMIT_S = 60.0
_PLATFORMS = ("AIP_", "AWS_", "CLOUDSDK_", "GCE_", "GOOGLE_", "SAGEMAKER_", "STORAGE_", "TRIDENT_", "TRITON_")
_NO_MACHINE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}


def platform_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without the variables of servers and clouds, with `variables`."""
    return {**environment_without(*_PLATFORMS), **_NO_MACHINE, **variables}


def header_names(names: Mapping[str, str]) -> dict[str, str]:
    """Keyword arguments as header names: `Content_Type` is Content-Type."""
    return {name.replace("_", "-"): value for name, value in names.items()}


class ContainerProcess:
    """A context manager: listens on entry, and is healthy unless `ready` is false. On exit nothing of it is left."""

    stop_limit_s: float

    def __init__(
        self, log: Path, port: int, probe: str, variables: Mapping[str, str], *arguments: str, ready: bool = True
    ) -> None:
        """`probe` is the path of the health probe. `arguments` follow `trident serve`."""
        self.port = port
        self.log = log
        self._probe = probe
        self._ready = ready
        self._command = [TRIDENT, "serve", *arguments]
        self._environment = platform_environment(variables)

    def start(self) -> None:
        self.process = start_session(self._command, self.log, env=self._environment)

    def __enter__(self) -> Self:
        self.start()
        try:
            # Until the container listens, the connection is refused.
            until(lambda: self.health_status() in ((200,) if self._ready else (200, 503)), self.log_text)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self.stop() == 0, self.log_text()
                assert session_members(self.process.pid) == []
        finally:
            self.kill()

    def stop(self) -> int:
        """Send SIGTERM. Returns the exit status, or raises TimeoutExpired after the platform's limit."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.stop_limit_s)

    def kill(self) -> None:
        kill_session(self.process)

    def wait_for_end(self) -> tuple[int, str]:
        """The exit status and the log of a container that ends by itself."""
        try:
            return self.process.wait(LIMIT_S), self.log_text()
        finally:
            self.kill()

    def health_status(self) -> int:
        """The status of a health probe; 0 if the port refuses the connection or the answer is late."""
        assert self.process.poll() is None, self.log_text()
        # A machine that runs tests may be slower than the platform allows.
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMIT_S)
        with contextlib.closing(connection), contextlib.suppress(ConnectionError, TimeoutError):
            connection.request("GET", self._probe)
            return connection.getresponse().status
        return 0

    def log_text(self) -> str:
        return quiet_text(self.log)
