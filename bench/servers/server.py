"""The servers under measurement: started as a person starts them, watched through /proc, stopped with SIGTERM."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.machine import tree_members, tree_seconds
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import kill_session, session_members, start_session
from tests.project import ROOT

START_LIMIT_S = 120.0
READY_STEP_S = 0.02
STOP_LIMIT_S = 45.0
SETTLE_LIMIT_S = 90.0
SETTLE_STEP_S = 0.25


class Server:
    """A server process with its children. A context manager: ready on entry, gone on exit.

    `command` may contain `{port}` and `{spare_port}`, which become free ports; it runs in `folder`.
    """

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
        ports = {"{port}": str(self.port), "{spare_port}": str(self.spare_port)}
        self.command = [_filled(part, ports) for part in command]
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
            time.sleep(READY_STEP_S)
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
        """Send one request on a new connection. Returns status, headers and body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def counts(self, model: str) -> tuple[int, int]:
        """A model's inferences and executions so far; zeros if the server does not count them."""
        status, _, body = self.exchange("GET", f"/v2/models/{model}/stats")
        if status != 200:
            return 0, 0
        entry: dict[str, Any] = json.loads(body)["model_stats"][0]
        return int(entry["inference_count"]), int(entry["execution_count"])

    def cpu_seconds(self) -> float:
        """User and system time so far of the process and its descendants."""
        return tree_seconds(self.process.pid)

    def resident_mb(self) -> float:
        """Resident memory of the largest process, which is the one that holds the models."""
        return max(map(resident_mb_of, session_members(self.process.pid)), default=0.0)

    def proportional_mb(self) -> float:
        """The memory of all processes together, those of models too; pages that several share count once."""
        return sum(account_mb(member, "Pss:") for member in tree_members(self.process.pid))

    def settle(self) -> None:
        """Wait until the server has finished the work of abandoned connections, so that the next cell starts even."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        before = self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(SETTLE_STEP_S)
            now = self.cpu_seconds()
            if now - before <= 0.1 * SETTLE_STEP_S:
                return
            before = now


def _filled(text: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def resident_mb_of(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def account_mb(process: int, *rows: str) -> float:
    """The sum of these rows in the kernel's account of a process's memory."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(rows)) / 1024


def trident(repository: Path, log: Path, *, checkout: Path = ROOT) -> Server:
    """The server of a checkout of this project, with the packages of its .venv if it has one, else with ours."""
    command = [
        *command_of(checkout),
        "serve",
        f"--model-repository={repository}",
        f"--http-address={HOST}",
        "--http-port={port}",
        "--metrics-port={spare_port}",
        "--allow-grpc=false",
    ]
    # The checkout's code, no matter which code the environment has installed.
    return Server("trident", command, log, {"PYTHONPATH": str(checkout)}, folder=checkout)


def command_of(checkout: Path) -> list[str]:
    """The command of a checkout that is on the path: with the packages of its .venv if it has one, else with ours."""
    own = checkout / ".venv" / "bin" / "python"
    # Checkouts from before the package `trident` have its folders alone.
    package = "trident.app" if (checkout / "trident").exists() else "app"
    return [str(own) if own.exists() else sys.executable, "-m", package]


def beside_command(text: str) -> str:
    """An argument type: the command of another v2 server. It must say where the repository and the HTTP port go."""
    missing = [placeholder for placeholder in ("{repo}", "{http}") if placeholder not in text]
    if missing:
        raise argparse.ArgumentTypeError(f"the command lacks {' and '.join(missing)}")
    return text


def beside(command: str, repository: Path, log: Path) -> Server:
    """Any other server of the v2 protocol over HTTP. Its command may contain {repo}, {http}, {grpc} and {metrics}."""
    values = {
        "{repo}": str(repository),
        "{http}": "{port}",
        "{metrics}": "{spare_port}",
        "{grpc}": str(free_ports(1)[0]),
    }
    return Server("other", [_filled(part, values) for part in shlex.split(command)], log)


def flask(repository: Path, log: Path) -> Server:
    """Stock gunicorn with its stock gevent worker, as many people run it."""
    command = [sys.executable, "-m", "gunicorn", "--worker-class=gevent", f"--bind={HOST}:{{port}}"]
    command.append("bench.servers.flask_server:app")
    return Server("flask", command, log, {"MODELS": str(repository)})


def socket_loop(repository: Path, log: Path) -> Server:
    """The bound for a large tensor: what Python does without a server."""
    model = str(repository / "identity" / "1" / "model.onnx")
    return Server("socket loop", [sys.executable, "-m", "bench.servers.socket_loop", "{port}", model], log)


def own_worker(log: Path) -> Server:
    """An empty page under this project's worker: the cost of a request that does nothing."""
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--worker-class=trident.app.worker.worker.TridentWorker",
        f"--bind={HOST}:{{port}}",
    ]
    command.append("bench.servers.empty_app:app")
    return Server("own worker", command, log)
