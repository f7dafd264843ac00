"""A container as Vertex AI starts it, with environment variables only, and the platform's calls of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import environment_without
from tests.contract.servers.session import TRIDENT, kill_session, session_members, start_session
from tests.waiting import quiet_text, until

LIMIT_S = 60.0
# Only status 200 is healthy. The platform waits 10 s; a machine that runs tests may be slower.
PROBE_S = 60.0
STOP_LIMIT_S = 45.0
HEALTH = "/v1/endpoints/1234567890/deployedModels/9876543210"
PREDICT = f"{HEALTH}:predict"
_OTHERS = ("AIP_", "AWS_", "CLOUDSDK_", "GCE_", "GOOGLE_", "SAGEMAKER_", "STORAGE_", "TRIDENT_", "TRITON_")


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an answer that must be `{"error": text}`."""
        document = self.document
        assert list(document) == ["error"], document
        text: str = document["error"]
        return text


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without the variables of servers and clouds, with `variables`."""
    return {**environment_without(*_OTHERS), "NO_GCE_CHECK": "true", **variables}


class VertexContainer:
    """A context manager: listens on entry, and is healthy unless `ready` is false. On exit nothing of it may be left.

    `storage` is AIP_STORAGE_URI. `variables` are added to those that the platform sets, or replace them; an empty one
    is not set. `arguments` follow `trident serve`.
    """

    def __init__(
        self,
        folder: Path,
        storage: Path | str,
        *arguments: str,
        ready: bool = True,
        probe: str = HEALTH,
        **variables: str,
    ) -> None:
        self.port, self.metrics_port = free_ports(2)
        self._log = folder / "log"
        self._ready = ready
        self._probe = probe
        self._arguments = arguments
        given = {
            "AIP_MODE": "PREDICTION",
            "AIP_MODE_VERSION": "1.0.0",
            "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
            "AIP_HTTP_PORT": str(self.port),
            "AIP_PREDICT_ROUTE": PREDICT,
            "AIP_HEALTH_ROUTE": HEALTH,
            "AIP_STORAGE_URI": str(storage),
            "AIP_ENDPOINT_ID": "1234567890",
            "AIP_DEPLOYED_MODEL_ID": "9876543210",
            "AIP_PROJECT_NUMBER": "42",
            "AIP_MACHINE_TYPE": "n1-standard-2",
            "TRIDENT_HTTP_ADDRESS": HOST,
            "TRIDENT_METRICS_PORT": str(self.metrics_port),
            "TRIDENT_SHUTDOWN_GRACE_SECS": "0",
            "TRIDENT_MODEL_CACHE_DIRECTORY": str(folder / "cache"),
            "HOME": str(folder),
            **variables,
        }
        self._variables = {name: text for name, text in given.items() if text}

    def __enter__(self) -> VertexContainer:
        self.start()
        try:
            # Until the container listens, the connection is refused.
            until(lambda: self.health_status() in ((200,) if self._ready else (200, 503)), self.log_text)
        except BaseException:
            self.kill()
            raise
        return self

    def start(self) -> None:
        command = [TRIDENT, "serve", *self._arguments]
        self.process = start_session(command, self._log, env=environment(self._variables))

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
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)

    def kill(self) -> None:
        kill_session(self.process)

    def wait_for_end(self) -> tuple[int, str]:
        """The exit status and the log of a container that ends by itself."""
        try:
            return self.process.wait(LIMIT_S), self.log_text()
        finally:
            self.kill()

    # --- the platform

    def accepts(self) -> bool:
        """Make the liveness probe. Returns whether the port accepts a connection."""
        try:
            socket.create_connection((HOST, self.port), PROBE_S).close()
        except ConnectionRefusedError:
            return False
        return True

    def health(self, path: str | None = None) -> Answer:
        return self.ask("GET", self._probe if path is None else path, within_s=PROBE_S)

    def health_status(self) -> int:
        """The status of a health probe; 0 if the port refuses the connection or the answer is late."""
        assert self.process.poll() is None, self.log_text()
        with contextlib.suppress(ConnectionError, TimeoutError):
            return self.health().status
        return 0

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        port: int | None = None,
        within_s: float = LIMIT_S,
        **headers: str,
    ) -> Answer:
        """Send a request on a new connection. `Content_Type` is the header Content-Type."""
        connection = http.client.HTTPConnection(HOST, port or self.port, timeout=within_s)
        with contextlib.closing(connection):
            connection.request(method, path, body, {key.replace("_", "-"): text for key, text in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def post(self, document: Any, path: str = PREDICT, **headers: str) -> Answer:
        """Send a predict request as the platform passes it on."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", path, body, **{"Content_Type": "application/json", **headers})

    def predictions(self, instances: list[Any], path: str = PREDICT, **parameters: Any) -> list[Any]:
        """The predictions of a request that must succeed."""
        answer = self.post({"instances": instances, "parameters": parameters}, path)
        assert answer.status == 200, answer.body
        found: list[Any] = answer.document["predictions"]
        assert len(found) == len(instances)
        return found

    def redirected(self, target: str, body: bytes | None = None, **headers: str) -> Answer:
        return self.ask("POST", PREDICT, body, X_Vertex_Ai_Triton_Redirect=target, **headers)

    def log_text(self) -> str:
        return quiet_text(self._log)
