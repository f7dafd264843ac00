"""Servers over a repository: the time until one is ready, and the requests to its repository."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any, Self

from bench.repository.emulators import ENVIRONMENT
from bench.servers.server import Server, command_of
from tests.contract.servers.ports import HOST
from tests.project import ROOT

READY_LIMIT_S = 600.0
# Ten milliseconds are half a percent of the shortest start.
READY_POLL_S = 0.01
STATE_LIMIT_S = 30.0
STATE_POLL_S = 0.01
JSON_HEADERS = {"Content-Type": "application/json"}


class RepositoryServer(Server):
    """`trident serve` of a checkout over `repository`, an argument for --model-repository.

    `ready_seconds` is the time from the start of the process until its readiness probe is answered with 200.
    """

    ready_seconds = 0.0

    def __init__(self, name: str, repository: str, log: Path, *options: str, checkout: Path | None = None) -> None:
        """Without a `checkout` the server is that of this one."""
        folder = checkout or ROOT
        command = [
            *command_of(folder),
            "serve",
            f"--model-repository={repository}",
            f"--http-address={HOST}",
            "--http-port={port}",
            "--metrics-port={spare_port}",
            "--allow-grpc=false",
        ]
        # The checkout's code, no matter which code the environment has installed.
        super().__init__(name, command, log, ENVIRONMENT | {"PYTHONPATH": str(folder)}, folder=folder)
        # Added later, because placeholders in them are not filled.
        self.command += options

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        return super().__enter__()

    def _wait_until_ready(self) -> None:
        while time.perf_counter() - self._started < READY_LIMIT_S:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended before it was ready; its log is {self.log}")
            try:
                if self.exchange("GET", "/v2/health/ready")[0] == 200:
                    self.ready_seconds = time.perf_counter() - self._started
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(READY_POLL_S)
        raise RuntimeError(f"{self.name} is not ready after {READY_LIMIT_S} s; its log is {self.log}")

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        document: list[dict[str, str]] = json.loads(self._control("index", {"ready": True} if ready else None))
        return document

    def load(self, model: str) -> None:
        """Load a model and return when it serves. RuntimeError if it fails."""
        self._control(f"models/{model}/load")

    def unload(self, model: str) -> None:
        """Unload a model and return when it is gone. RuntimeError if it stays."""
        self._control(f"models/{model}/unload")
        deadline = time.monotonic() + STATE_LIMIT_S
        while time.monotonic() < deadline:
            states = {entry.get("state", "") for entry in self.index() if entry["name"] == model}
            if states == {"UNAVAILABLE"}:
                return
            time.sleep(STATE_POLL_S)
        raise RuntimeError(f"{self.name}: '{model}' is still there {STATE_LIMIT_S} s after its unload")

    def _control(self, path: str, document: Any = None) -> bytes:
        body = b"" if document is None else json.dumps(document).encode()
        status, _, answer = self.exchange("POST", f"/v2/repository/{path}", body, JSON_HEADERS)
        if status != 200:
            raise RuntimeError(f"{self.name} answers {path} with {status}: {answer[:300]!r}")
        return answer
