"""One server with all doors open: HTTP, gRPC, the ports of both platforms, shared memory and the response cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import cached_property
from pathlib import Path

from bench.servers.server import Server
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import TRIDENT, session_members

CACHE_BYTES = 1 << 24
PREDICT = "/predict"


class AllDoors(Server):
    """The code of `checkout` in this environment. `platform_model` answers at the ports of both platforms.

    Options that the checkout does not know yet are left out, and a model that it cannot load is no error: what it
    does not serve is seen when it is asked.
    """

    def __init__(self, checkout: Path, repository: Path, platform_model: str, log: Path) -> None:
        self.grpc_port, self.sagemaker_port, self.vertex_port = free_ports(3)
        environment = {
            "PYTHONPATH": str(checkout),  # before the checkout that the environment has installed
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": platform_model,
            "AIP_PREDICT_ROUTE": PREDICT,
            "AIP_HEALTH_ROUTE": "/health",
        }
        options = [
            f"--model-repository={repository}",
            "--exit-on-error=false",
            "--strict-readiness=false",
            "--platform=plain",
            "--http-workers=0",
            f"--http-address={HOST}",
            "--http-port={port}",
            "--metrics-port={spare_port}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.grpc_port}",
            "--allow-sagemaker=true",
            f"--sagemaker-port={self.sagemaker_port}",
            "--allow-vertex-ai=true",
            f"--vertex-ai-port={self.vertex_port}",
            f"--vertex-ai-default-model={platform_model}",
            "--allow-client-shm=true",
            f"--cache-config=local,size={CACHE_BYTES}",
        ]
        _compile(checkout)
        known = _known_options(checkout, environment)
        options = [option for option in options if option.partition("=")[0] in known]
        super().__init__("trident", [TRIDENT, "serve", *options], log, environment, folder=checkout)

    def cpu_seconds(self) -> float:
        """As those of `Server`, but to the nanosecond: a turn has only a few of the ticks of /proc."""
        return sum(time.clock_gettime(_cpu_clock(process)) for process in self._processes)

    @cached_property
    def _processes(self) -> list[int]:
        """They are as many from the start to the end."""
        return session_members(self.process.pid)

    def counts(self, model: str) -> tuple[int, int]:
        """Requests answered so far, those from the cache too, which are no inferences; and executions."""
        status, _, body = self.exchange("GET", f"/v2/models/{model}/stats")
        if status != 200:
            raise RuntimeError(f"the statistics of '{model}' are answered with {status}: {body.decode()}")
        entry = json.loads(body)["model_stats"][0]
        return int(entry["inference_stats"]["success"]["count"]), int(entry["execution_count"])


def _cpu_clock(process: int) -> int:
    """The clock of another process's CPU time: what clock_getcpuclockid(3) of the C library gives on Linux."""
    return ~process << 3 | 2


def _compile(checkout: Path) -> None:
    """Write the bytecode, so that neither server has the heap of a process that compiled its modules itself."""
    packages = [str(checkout / name) for name in ("core", "adapters", "app")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], check=True)


def _known_options(checkout: Path, environment: dict[str, str]) -> set[str]:
    """The options in the checkout's own help. RuntimeError if it prints none."""
    for words in ("--help=all", "--help"):  # the second is for checkouts whose help has no groups
        done = subprocess.run(
            [TRIDENT, "serve", words],
            cwd=checkout,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode:
            break
    if done.returncode:
        raise RuntimeError(f"`trident serve --help` of {checkout} fails: {done.stderr.strip()}")
    return {word.partition("=")[0] for word in done.stdout.split() if word.startswith("--")}
