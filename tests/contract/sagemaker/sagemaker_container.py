"""A container as SageMaker starts it, and the platform's calls of it under the platform's limits."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import environment_without
from tests.contract.servers.session import TRIDENT, kill_session, session_members, start_session
from tests.waiting import quiet_text, until
from trident.app.emulators.container import ContainerAnswer, ContainerClient
from trident.app.emulators.sagemaker.endpoint import PlatformLimits

# A machine that runs tests may be slower than the platform allows.
LIMITS = PlatformLimits(connect_s=30.0, ping_s=30.0)
LIMIT_S = 60.0
# The platform kills 30 s after SIGTERM.
STOP_LIMIT_S = 25.0
_OTHERS = ("SAGEMAKER_", "TRIDENT_", "AIP_", "AWS_")


def platform_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without the variables of servers and clouds, with `variables`."""
    return environment_without(*_OTHERS) | dict(variables)


def header_names(names: Mapping[str, str]) -> dict[str, str]:
    """Keyword arguments as header names: `Content_Type` is Content-Type."""
    return {name.replace("_", "-"): value for name, value in names.items()}


class SageMakerContainer:
    """A context manager: listens on entry, and is ready unless `ready` is false. On exit nothing of it may be left."""

    def __init__(self, log: Path, *, ready: bool = True, **variables: str) -> None:
        (self.port,) = free_ports(1)
        self._log = log
        self._ready = ready
        self._variables = {"SAGEMAKER_BIND_TO_PORT": str(self.port), "TRIDENT_HTTP_ADDRESS": HOST, **variables}
        self._client = ContainerClient(self.port, LIMITS)

    def __enter__(self) -> SageMakerContainer:
        self.process = start_session([TRIDENT, "serve"], self._log, env=platform_environment(self._variables))
        try:
            until(lambda: self.ping_status() in ((200,) if self._ready else (200, 503)), self.log_text)
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
        """Send SIGTERM. Returns the exit status, or raises TimeoutExpired after STOP_LIMIT_S."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)

    def kill(self) -> None:
        kill_session(self.process)

    def ping_status(self) -> int:
        """The status of a probe; 0 if the port refuses the connection or the answer is late."""
        assert self.process.poll() is None, self.log_text()
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMITS.ping_s)
        with contextlib.closing(connection), contextlib.suppress(ConnectionError, TimeoutError):
            connection.request("GET", "/ping")
            return connection.getresponse().status
        return 0

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> ContainerAnswer:
        """Send a request. Raises ContainerFault if a limit is broken."""
        within_s = LIMITS.ping_s if path == "/ping" else LIMITS.invoke_s
        return self._client.ask(method, path, headers=header_names(headers), body=body, within_s=within_s)

    def invoke(self, body: bytes, **headers: str) -> ContainerAnswer:
        return self.ask("POST", "/invocations", body, **headers)

    def invoke_chunked(self, chunks: Iterable[bytes], **headers: str) -> tuple[int, bytes]:
        """Send an invocation with a chunked body, as a batch transform without a payload limit does."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMIT_S)
        with contextlib.closing(connection):
            connection.request("POST", "/invocations", iter(chunks), header_names(headers), encode_chunked=True)
            response = connection.getresponse()
            return response.status, response.read()

    def load(self, name: str, url: str) -> ContainerAnswer:
        body = json.dumps({"model_name": name, "url": url}).encode()
        return self.ask("POST", "/models", body, Content_Type="application/json")

    def log_text(self) -> str:
        """The end of the log."""
        return quiet_text(self._log)[-4000:]
