"""A container as SageMaker starts it, and the platform's calls of it under the platform's limits."""

from __future__ import annotations

import json
from pathlib import Path

from tests.contract.platforms.container import ContainerProcess, header_names
from tests.contract.servers.ports import HOST, free_ports
from trident.tools.emulators.container import ContainerAnswer, ContainerClient
from trident.tools.emulators.sagemaker.endpoint import SageMakerLimits

# A machine that runs tests may be slower than the platform allows.
LIMITS = SageMakerLimits(connect_s=30.0, ping_s=30.0)


class SageMakerContainer(ContainerProcess):
    stop_limit_s = 25.0  # the platform kills 30 s after SIGTERM

    def __init__(self, log: Path, *, ready: bool = True, **variables: str) -> None:
        (port,) = free_ports(1)
        given = {"SAGEMAKER_BIND_TO_PORT": str(port), "TRIDENT_HTTP_ADDRESS": HOST, **variables}
        super().__init__(log, port, "/ping", given, ready=ready)
        self._client = ContainerClient(port, LIMITS)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> ContainerAnswer:
        """Send a request. Raises ContainerFault if a limit is broken."""
        within_s = LIMITS.ping_s if path == "/ping" else LIMITS.invoke_s
        return self._client.ask(method, path, headers=header_names(headers), body=body, within_s=within_s)

    def invoke(self, body: bytes, **headers: str) -> ContainerAnswer:
        return self.ask("POST", "/invocations", body, **headers)

    def load(self, name: str, url: str) -> ContainerAnswer:
        body = json.dumps({"model_name": name, "url": url}).encode()
        return self.ask("POST", "/models", body, Content_Type="application/json")
