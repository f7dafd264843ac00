"""A container as Vertex AI starts it, with environment variables only, and the platform's calls of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path
from typing import Any, NamedTuple

from tests.contract.platforms.container import LIMIT_S, ContainerProcess, header_names
from tests.contract.servers.ports import HOST, free_ports

HEALTH = "/v1/endpoints/1234567890/deployedModels/9876543210"
PREDICT = f"{HEALTH}:predict"


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


class VertexContainer(ContainerProcess):
    """`variables` are added to those that the platform sets, or replace them; an empty one is not set.

    `storage` is AIP_STORAGE_URI. `arguments` follow `trident serve`.
    """

    stop_limit_s = 45.0

    def __init__(
        self,
        folder: Path,
        storage: Path | str,
        *arguments: str,
        ready: bool = True,
        probe: str = HEALTH,
        **variables: str,
    ) -> None:
        port, self.metrics_port = free_ports(2)
        given = {
            "AIP_MODE": "PREDICTION",
            "AIP_MODE_VERSION": "1.0.0",
            "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
            "AIP_HTTP_PORT": str(port),
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
        given = {name: text for name, text in given.items() if text}
        super().__init__(folder / "log", port, probe, given, *arguments, ready=ready)

    def accepts(self) -> bool:
        """Make the liveness probe. Returns whether the port accepts a connection."""
        try:
            socket.create_connection((HOST, self.port), LIMIT_S).close()
        except ConnectionRefusedError:
            return False
        return True

    def health(self) -> Answer:
        return self.ask("GET", self._probe)

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, port: int | None = None, **headers: str
    ) -> Answer:
        """Send a request on a new connection. `Content_Type` is the header Content-Type."""
        connection = http.client.HTTPConnection(HOST, port or self.port, timeout=LIMIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, header_names(headers))
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
