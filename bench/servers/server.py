"""The servers under measurement: started as a person starts them, watched through /proc, stopped with SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
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
from typing import Self

from bench.machine import cpu_seconds, tree_members
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import kill_session, start_session
from tests.project import ROOT

START_LIMIT_S = 600.0
READY_STEP_S = 0.01
STOP_LIMIT_S = 45.0
SETTLE_LIMIT_S = 90.0
SETTLE_STEP_S = 0.25
PORTS = ("http", "metrics", "grpc", "sagemaker", "vertex")
JSON_HEADERS = {"Content-Type": "application/json"}

PREDICT = "/predict"
GRPC = (f"--grpc-address={HOST}", "--grpc-port={grpc}")
SAGEMAKER = ("--platform=plain", "--allow-sagemaker=true", "--sagemaker-port={sagemaker}")
VERTEX = ("--platform=plain", "--allow-vertex-ai=true", "--vertex-ai-port={vertex}")
VERTEX_ROUTES = {"AIP_PREDICT_ROUTE": PREDICT, "AIP_HEALTH_ROUTE": "/health"}


class Server:
    """A server process with its children. A context manager: ready on entry, gone on exit.

    `command` may contain the names of `PORTS` in braces, which become free ports; it runs in `folder`.
    """

    repository = Path()
    """The folder of its models, where their answers are checked."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        environment: dict[str, str] | None = None,
        *,
        folder: Path = ROOT,
        ready_path: str = "/v2/health/ready",
    ) -> None:
        self.name = name
        self.folder = folder
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.command = [
            _filled(part, {f"{{{name}}}": str(port) for name, port in self.ports.items()}) for part in command
        ]
        self.log = log
        self.environment = os.environ | (environment or {})
        self.ready_path = ready_path

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        self.process = start_session(self.command, self.log, cwd=self.folder, env=self.environment)
        try:
            while not self._is_ready():
                if self.process.poll() is not None:
                    raise RuntimeError(f"{self.name} ended before it was ready; its log is {self.log}")
                if time.perf_counter() - began > START_LIMIT_S:
                    raise RuntimeError(f"{self.name} is not ready after {START_LIMIT_S:g} s; its log is {self.log}")
                time.sleep(READY_STEP_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _is_ready(self) -> bool:
        try:
            return self.exchange("GET", self.ready_path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            kill_session(self.process)

    def url(self, path: str, port: str = "http") -> str:
        return f"http://{HOST}:{self.ports[port]}{path}"

    def exchange(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send one request on a new connection. Returns status, headers and body."""
        connection = http.client.HTTPConnection(HOST, self.ports["http"], timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPMessage, bytes]:
        """Send one request on a new connection. Returns headers and body; RuntimeError unless the status is 200."""
        status, answered, content = self.exchange(method, path, body, headers)
        if status != 200:
            raise RuntimeError(f"{self.name} answers {path} with {status}: {content[:300].decode(errors='replace')}")
        return answered, content

    def requests(self, model: str) -> int:
        """A model's successful requests so far, those answered from the cache too; 0 if the server counts none."""
        status, _, body = self.exchange("GET", f"/v2/models/{model}/stats")
        return int(json.loads(body)["model_stats"][0]["inference_stats"]["success"]["count"]) if status == 200 else 0

    def cpu_seconds(self) -> float:
        """CPU time so far of the process and its living descendants."""
        return cpu_seconds(tree_members(self.process.pid))

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


def trident(
    repository: Path | str,
    log: Path,
    *options: str,
    name: str = "trident",
    checkout: Path = ROOT,
    environment: dict[str, str] | None = None,
) -> Server:
    """The server of a checkout of this project, whose code it runs, whatever the environment has installed.

    Options that another checkout does not know yet are left out.
    """
    words = [
        f"--model-repository={repository}",
        f"--http-address={HOST}",
        "--http-port={http}",
        "--metrics-port={metrics}",
        *(options if set(GRPC) & set(options) else ("--allow-grpc=false", *options)),
    ]
    environment = {"PYTHONPATH": str(checkout)} | (environment or {})
    if checkout != ROOT:
        known = _known_options(checkout, environment)
        words = [word for word in words if word.partition("=")[0] in known]
    server = Server(name, [*command_of(checkout), "serve", *words], log, environment, folder=checkout)
    server.repository = Path(repository)
    return server


def command_of(checkout: Path) -> list[str]:
    """The command of a checkout that is on the path: with the packages of its .venv if it has one, else with ours."""
    own = checkout / ".venv" / "bin" / "python"
    return [str(own) if own.exists() else sys.executable, "-m", "trident.app"]


def _known_options(checkout: Path, environment: dict[str, str]) -> set[str]:
    """The options in the checkout's own help."""
    command = [*command_of(checkout), "serve", "--help=all"]
    environment = os.environ | environment
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {word.partition("=")[0] for word in done.stdout.split() if word.startswith("--")}


def beside_command(text: str) -> str:
    """An argument type: the command of another v2 server. It must say where the repository and the HTTP port go."""
    missing = [placeholder for placeholder in ("{repo}", "{http}") if placeholder not in text]
    if missing:
        raise argparse.ArgumentTypeError(f"the command lacks {' and '.join(missing)}")
    return text


def beside(command: str, repository: Path, log: Path) -> Server:
    """Any other server of the v2 protocol over HTTP. Its command may contain {repo}, {http}, {grpc} and {metrics}."""
    server = Server("other", [_filled(part, {"{repo}": str(repository)}) for part in shlex.split(command)], log)
    server.repository = repository
    return server


def flask(repository: Path, log: Path) -> Server:
    """Stock gunicorn with its stock gevent worker, as many people run it."""
    command = [sys.executable, "-m", "gunicorn", "--worker-class=gevent", f"--bind={HOST}:{{http}}"]
    server = Server("flask", [*command, "bench.servers.flask_server:app"], log, {"MODELS": str(repository)})
    server.repository = repository
    return server
