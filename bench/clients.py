"""The client that keeps a server busy: that of `trident bench`, in a process that can be stopped and continued."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from tests.project import ROOT
from trident.tools.bench.client import Loop, Target

if TYPE_CHECKING:
    from bench.servers.server import Server

BUILD = ROOT / "build" / "bench"
REQUESTS = BUILD / "requests"
EXIT_LIMIT_S = 180
GRPC_SERVICE = "/inference.GRPCInferenceService/"
_PREFIX_BYTES = 4
_READY = "READY\n"


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The result of one run of a client. Times in milliseconds; `errors` were refused, broken, late or not 2xx/3xx.

    `cpu_s` is the client's CPU time.
    """

    requests: int
    seconds: float
    p99_ms: float
    errors: int
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def write_requests(name: str, *bodies: bytes, headers: dict[str, str] | None = None) -> Path:
    """A file for a client that sends `bodies` with POST in rotation, or a plain GET without any."""
    REQUESTS.mkdir(parents=True, exist_ok=True)
    path = REQUESTS / name
    path.write_bytes(pickle.dumps((bodies, headers or {})))
    return path


def run_client(url: str, requests: Path, *, connections: int, seconds: int) -> ClientResult:
    """Keep `connections` busy for `seconds`."""
    return finish(start_client(url, requests, connections=connections, seconds=seconds), seconds + EXIT_LIMIT_S)


def start_client(
    url: str, requests: Path, *, connections: int, seconds: int, in_flight: int = 1, streams: bool = False
) -> subprocess.Popen[str]:
    """Start a run without waiting for its end. SIGINT ends it at once.

    The bodies are sent as messages of gRPC if `url` is grpc://HOST:PORT/METHOD: `in_flight` at a time on each
    connection, or all of a connection on one call if `streams`.
    """
    words = [url, str(requests), str(connections), str(seconds), str(in_flight), str(int(streams))]
    command = [sys.executable, "-m", "bench.clients", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    if process.stdout.readline() != _READY:
        raise RuntimeError(f"the client did not start: {process.communicate()[1]}")
    return process


def finish(process: subprocess.Popen[str], within_s: float = EXIT_LIMIT_S) -> ClientResult:
    """Wait for the end of a run. RuntimeError if it reports no result; it is killed if it takes longer than allowed."""
    try:
        output, errors = process.communicate(timeout=within_s)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    # It may have been interrupted again when it had reported.
    if not output:
        raise RuntimeError(f"the client reported no result: {output}{errors}")
    return ClientResult(**json.loads(output))


@dataclass(frozen=True, slots=True)
class Load:
    """`server` is asked at `url` and answers with `model`; see start_client.

    `connections` replaces the number that the other loads of a row have, unless it is 0.
    """

    server: Server
    model: str
    url: str
    requests: Path
    in_flight: int = 1
    streams: bool = False
    connections: int = 0

    def start(self, *, connections: int, seconds: int) -> subprocess.Popen[str]:
        """Start the client, whose result `finish` reads. SIGINT ends it at once."""
        return start_client(
            self.url,
            self.requests,
            connections=self.connections or connections,
            seconds=seconds,
            in_flight=self.in_flight,
            streams=self.streams,
        )


def target_of(url: str, requests: Path, connections: int, in_flight: int, *, streams: bool) -> Target:
    at = urlsplit(url)
    bodies, headers = pickle.loads(requests.read_bytes())
    is_grpc = at.scheme == "grpc"
    if is_grpc:
        made = [b"\0" + len(body).to_bytes(_PREFIX_BYTES, "big") + body for body in bodies]
    else:
        lines = "".join(f"{name}: {text}\r\n" for name, text in {"Host": at.netloc, **headers}.items())
        path = f"{at.path or '/'}{'?' if at.query else ''}{at.query}"
        made = [
            f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies
        ]
        made = made or [f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()]
    # Where there are enough, each connection has bodies of its own, such as sequences or parts of a region.
    own = len(made) >= connections > 1
    return Target(
        host=at.hostname or "",
        port=at.port or 80,
        requests=[made[number::connections] for number in range(connections)] if own else [made],
        method=at.path if is_grpc else "",
        streams=streams,
        per_connection=own,
        in_flight=in_flight,
    )


def main() -> None:
    """The process of a client."""
    url, requests, *numbers = sys.argv[1:]
    connections, seconds, in_flight, streams = map(int, numbers)
    loop = Loop(target_of(url, Path(requests), connections, in_flight, streams=bool(streams)), 0)

    def stop(*_: object) -> None:
        loop.stopped = True

    signal.signal(signal.SIGINT, stop)
    print(_READY, end="", flush=True)
    sample = loop.run(seconds, connections * in_flight)
    p99 = float(np.percentile(np.asarray(sample.latency) * 1e3, 99)) if sample.latency else 0.0
    count, cpu_s = len(sample.latency), sample.cpu * sample.seconds
    found = ClientResult(count, sample.seconds, p99, sample.errors, cpu_s)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
