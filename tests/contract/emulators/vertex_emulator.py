"""`trident emulate vertex` as a process, called by the real SDK."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform, aiplatform_v1
from requests.adapters import HTTPAdapter

from tests.contract.servers.session import TRIDENT, session_members, start_session
from tests.contract.vertex.vertex_container import environment
from tests.waiting import until

LIMIT_S = 120.0
_READY = re.compile(r"the container is ready; (?P<endpoint>\S+) is at (?P<url>http://\S+)\n")


class VertexEmulator:
    """A context manager: ready on entry, unless `ready` is false. On exit nothing of it may be left.

    The log is `folder / "log"`. `variables` are added to the environment.
    """

    def __init__(self, folder: Path, model: Path | str, *arguments: str, ready: bool = True, **variables: str) -> None:
        # Not in `folder`: the address of a socket is short.
        self._temporary = tempfile.TemporaryDirectory()
        self._log = folder / "log"
        self._ready = ready
        # Options go before the container's arguments, which `arguments` may contain.
        self._arguments = [str(model), "--env=TRIDENT_SHUTDOWN_GRACE_SECS=0", *arguments]
        self._variables = {"HOME": str(folder), "TMPDIR": self._temporary.name, **variables}

    def __enter__(self) -> VertexEmulator:
        command = [TRIDENT, "emulate", "vertex", *self._arguments]
        self.process = start_session(command, self._log, env=environment(self._variables))
        try:
            if self._ready:
                until(lambda: self._found() or self.process.poll() is not None, self.log_text)
                assert self._found() is not None, self.log_text()
        except BaseException:
            self._kill()
            self._temporary.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self.process.poll() is not None, "a test must stop what it starts"
                assert os.listdir(self._temporary.name) == []
                assert session_members(self.process.pid) == []
        finally:
            self._kill()
            self._temporary.cleanup()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log_text()) from None

    def container(self) -> int:
        """The process id of the container's program."""
        children = [
            int(stat.parent.name)
            for stat in Path("/proc").glob("[0-9]*/stat")
            for text in [_text(stat)]
            if text and int(text.rpartition(")")[2].split()[1]) == self.process.pid
        ]
        (found,) = children
        return found

    @property
    def url(self) -> str:
        found = self._found()
        assert found is not None
        return found["url"]

    @property
    def grpc_address(self) -> str:
        found = re.search(r"gRPC calls are answered at (\S+)\n", self.log_text())
        assert found is not None
        return found[1]

    @property
    def endpoint(self) -> str:
        """The resource name."""
        found = self._found()
        assert found is not None
        return found["endpoint"]

    @property
    def address(self) -> str:
        return f"{self.url}/v1/{self.endpoint}"

    def client(self) -> Any:
        """The SDK's generated client."""
        return sdk_client(self.url)

    def sdk_endpoint(self) -> Any:
        """The SDK's endpoint class. It talks to a dedicated endpoint without TLS."""
        aiplatform.init(
            project="any",
            location="us-central1",
            api_endpoint=self.url,
            api_transport="rest",
            credentials=AnonymousCredentials(),
        )
        found = aiplatform.Endpoint(self.endpoint)
        session = requests.Session()
        session.mount("https://", WithoutTls())
        found.authorized_session = session
        return found

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def _found(self) -> re.Match[str] | None:
        return _READY.search(self.log_text())

    def _kill(self) -> None:
        """Kill the emulator, and its container, which has its own session."""
        if self.process.poll() is None:
            with contextlib.suppress(ValueError, ProcessLookupError):
                for member in session_members(self.container()):
                    os.kill(member, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


def sdk_client(url: str) -> Any:
    """The SDK's generated client for the API at `url`."""
    return aiplatform_v1.PredictionServiceClient(
        transport="rest", client_options={"api_endpoint": url}, credentials=AnonymousCredentials()
    )


class WithoutTls(HTTPAdapter):
    def send(self, request: Any, *arguments: Any, **more: Any) -> Any:
        request.url = request.url.replace("https:", "http:", 1)
        return super().send(request, *arguments, **more)


def _text(stat: Path) -> str:
    try:
        return stat.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
