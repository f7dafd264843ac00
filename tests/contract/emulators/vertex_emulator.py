"""`trident emulate vertex` as a process, called by the real SDK."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform, aiplatform_v1
from requests.adapters import HTTPAdapter

from tests.contract.emulators.emulator_process import EmulatorProcess

_READY = re.compile(r"the container is ready; (?P<endpoint>\S+) is at (?P<url>http://\S+)\n")


class VertexEmulator(EmulatorProcess):
    """Called by the real SDK. A test ends it. `variables` are added to the environment."""

    platform = "vertex"
    open_text = "the container is ready; "

    def __init__(self, folder: Path, model: Path | str, *arguments: str, ready: bool = True, **variables: str) -> None:
        # Options go before the container's arguments, which `arguments` may contain.
        options = ("--env=TRIDENT_SHUTDOWN_GRACE_SECS=0", *arguments)
        super().__init__(folder, str(model), *options, ready=ready, variables={"HOME": str(folder), **variables})

    @property
    def url(self) -> str:
        found = self._found()
        assert found is not None
        return found["url"]

    @property
    def grpc_address(self) -> str:
        found = re.search(r"gRPC calls are answered at (\S+)\n", self.text())
        assert found is not None
        return found[1]

    @property
    def endpoint(self) -> str:
        found = self._found()
        assert found is not None
        return found["endpoint"]

    @property
    def address(self) -> str:
        return f"{self.url}/v1/{self.endpoint}"

    def client(self) -> Any:
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

    def _found(self) -> re.Match[str] | None:
        return _READY.search(self.text())


def sdk_client(url: str) -> Any:
    """The SDK's generated client for the API at `url`."""
    return aiplatform_v1.PredictionServiceClient(
        transport="rest", client_options={"api_endpoint": url}, credentials=AnonymousCredentials()
    )


class WithoutTls(HTTPAdapter):
    def send(self, request: Any, *arguments: Any, **more: Any) -> Any:
        request.url = request.url.replace("https:", "http:", 1)
        return super().send(request, *arguments, **more)
