"""The servers side by side: started as a person starts them, watched through /proc, stopped with SIGTERM."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.contract.servers.server import HOST, free_ports
from tests.contract.servers.session import TRIDENT, kill_session, session_members, start_session
from tests.project import ROOT

START_LIMIT_S = 120.0
STOP_LIMIT_S = 45.0
SETTLE_LIMIT_S = 90.0
SETTLE_STEP_S = 0.25
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def resident_mb_of(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Server:
    """A server process with its children. `command` may use `{port}` and `{spare_port}`."""

    ready_path = "/v2/health/ready"

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        environment: dict[str, str] | None = None,
        *,
        folder: Path = ROOT,
    ) -> None:
        self.name = name
        self.folder = folder
        self.port, self.spare_port = free_ports(2)
        self.command = [part.format(port=self.port, spare_port=self.spare_port) for part in command]
        self.log = log
        self.environment = os.environ | (environment or {})

    def __enter__(self) -> Self:
        self.process = start_session(self.command, self.log, cwd=self.folder, env=self.environment)
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended before it was ready; its log is {self.log}")
            try:
                if self.exchange("GET", self.ready_path)[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} is not ready after {START_LIMIT_S} s; its log is {self.log}")

    def _stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            kill_session(self.process)

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self.port}{path}"

    def exchange(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def counts(self, model: str) -> tuple[int, int]:
        """Inferences and executions of a model so far; zeros where the server does not count."""
        status, _, body = self.exchange("GET", f"/v2/models/{model}/stats")
        if status != 200:
            return 0, 0
        entry: dict[str, Any] = json.loads(body)["model_stats"][0]
        return entry["inference_count"], entry["execution_count"]

    def cpu_seconds(self) -> float:
        """User and system time of all its processes up to now."""
        ticks = 0
        for member in session_members(self.process.pid):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_PER_SECOND

    def resident_mb(self) -> float:
        """Resident memory of its largest process: the one that holds the models."""
        return max(map(resident_mb_of, session_members(self.process.pid)), default=0.0)

    def settle(self) -> None:
        """Wait until it has finished what abandoned connections left behind, so that the next cell starts even."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        before = self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(SETTLE_STEP_S)
            now = self.cpu_seconds()
            if now - before <= 0.1 * SETTLE_STEP_S:
                return
            before = now


def trident(repository: Path, log: Path, *, checkout: Path = ROOT) -> Server:
    """The server of a checkout of this project, with the packages of its .venv if it has one, else with ours."""
    own_script = checkout / ".venv" / "bin" / "trident"
    command = [
        str(own_script) if own_script.exists() else TRIDENT,
        "serve",
        f"--model-repository={repository}",
        f"--http-address={HOST}",
        "--http-port={port}",
        "--metrics-port={spare_port}",
    ]
    # The checkout's code, whichever one the environment has installed.
    return Server("trident", command, log, {"PYTHONPATH": str(checkout)}, folder=checkout)


def flask(repository: Path, log: Path) -> Server:
    """Stock gunicorn with its stock gevent worker, as many people run it."""
    command = [sys.executable, "-m", "gunicorn", "--worker-class=gevent", f"--bind={HOST}:{{port}}"]
    command.append("bench.servers.flask_server:app")
    return Server("flask", command, log, {"MODELS": str(repository)})


def socket_loop(repository: Path, log: Path) -> Server:
    """A bound for a large tensor: what Python does without a server."""
    model = str(repository / "identity" / "1" / "model.onnx")
    return Server("socket loop", [sys.executable, "-m", "bench.servers.socket_loop", "{port}", model], log)


def own_worker(log: Path) -> Server:
    """An empty page under this project's worker: what a request costs that does nothing."""
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--worker-class=app.worker.worker.TridentWorker",
        f"--bind={HOST}:{{port}}",
    ]
    command.append("bench.servers.empty_app:app")
    return Server("own worker", command, log)
