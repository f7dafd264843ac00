"""A Triton that needs no container, started as Trident is in tests.

`build_triton.sh` makes one from public packages. Its command, `tritonserver …` with the options that it needs, is in
the environment variable TRITON.
"""

from __future__ import annotations

import os
import shlex
import subprocess

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess


class TritonProcess(ServerProcess):
    """A `ServerProcess` that runs Triton. What it leaves behind at its end is removed, and no fault."""

    @property
    def command(self) -> list[str]:
        return [
            *shlex.split(os.environ.get("TRITON", "tritonserver")),
            f"--model-repository={self.location}",
            f"--http-address={HOST}",
            f"--http-port={self.http_port}",
            f"--metrics-port={self.metrics_port}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.grpc_port}",
            *self.options,
        ]

    def __exit__(self, *error: object) -> None:
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
