"""The servers under measurement: this one with both doors, and a grpcio server with the same engine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import tritonclient.grpc as triton

from bench.servers.server import START_LIMIT_S, Server, command_of
from tests.contract.servers.ports import HOST
from tests.project import ROOT


class BothDoors(Server):
    """The server of a checkout of this project, with HTTP and gRPC."""

    def __init__(self, repository: Path, log: Path, *options: str, checkout: Path = ROOT) -> None:
        command = [
            *command_of(checkout),
            "serve",
            f"--model-repository={repository}",
            f"--http-address={HOST}",
            f"--grpc-address={HOST}",
            "--http-port={port}",
            "--grpc-port={spare_port}",
            "--allow-metrics=false",
            *options,
        ]
        # The checkout's code, no matter which code the environment has installed.
        super().__init__("trident", command, log, {"PYTHONPATH": str(checkout)}, folder=checkout)

    @property
    def grpc_port(self) -> int:
        return self.spare_port


class GrpcioServer(Server):
    """A server of the grpcio package, whose threads wait for the same engine."""

    def __init__(self, repository: Path, model: str, log: Path) -> None:
        command = [sys.executable, "-m", "bench.servers.grpcio_server", "{port}", str(repository), model]
        super().__init__("grpcio", command, log)

    @property
    def grpc_port(self) -> int:
        return self.port

    def counts(self, model: str) -> tuple[int, int]:
        with triton.InferenceServerClient(f"{HOST}:{self.port}") as client:
            (entry,) = client.get_inference_statistics(model).model_stats
        return entry.inference_count, entry.execution_count

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended before it was ready; its log is {self.log}")
            try:
                with triton.InferenceServerClient(f"{HOST}:{self.port}") as client:
                    if client.is_server_ready():
                        return
            except triton.InferenceServerException:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} is not ready after {START_LIMIT_S} s; its log is {self.log}")
