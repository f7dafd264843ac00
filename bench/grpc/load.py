"""The client that sends gRPC messages: `load.c`, compiled when first used."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench import wrk
from bench.servers.server import Server
from tests.project import ROOT

SOURCE = Path(__file__).with_name("load.c")
BUILD = ROOT / "build" / "bench" / "grpc"
SERVICE = "/inference.GRPCInferenceService/"
_PREFIX_BYTES = 4


def build_or_exit() -> Path:
    """The compiled client. SystemExit says how to install a compiler if there is none."""
    program = BUILD / "load"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "The gRPC client is written in C and there is no compiler. On Debian and Ubuntu: apt install gcc"
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


def write_message(path: Path, message: bytes) -> Path:
    """Write a message as gRPC frames it: uncompressed, with its length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" + len(message).to_bytes(_PREFIX_BYTES, "big") + message)
    return path


@dataclass(frozen=True, slots=True)
class GrpcLoad:
    """Sends the framed message in `message` to `port`, `in_flight` at a time on each connection.

    `streams` sends the messages of a connection on one call of ModelStreamInfer; otherwise each has its own ModelInfer.
    `connections` replaces the number that the others of the same turns have, unless it is 0.
    """

    server: Server
    model: str
    port: int
    message: Path
    in_flight: int = 1
    streams: bool = False
    connections: int = 0

    def start(self, *, connections: int, seconds: int) -> subprocess.Popen[str]:
        """Start a run without waiting for its end. SIGINT ends it at once; `wrk.finish` reads its result."""
        method, mode = ("ModelStreamInfer", "stream") if self.streams else ("ModelInfer", "unary")
        command = [
            str(build_or_exit()),
            str(self.port),
            str(self.connections or connections),
            str(seconds),
            str(self.message),
            SERVICE + method,
            str(self.in_flight),
            mode,
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *, connections: int, seconds: int) -> wrk.Load:
        """Keep the connections busy for `seconds`."""
        return wrk.finish(self.start(connections=connections, seconds=seconds), seconds + wrk.EXIT_LIMIT_S)
