"""The clients that keep a server busy: `wrk` for HTTP, and `grpc_client.c` for gRPC, compiled on first use."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.servers.server import Server
from tests.project import ROOT

BUILD = ROOT / "build" / "bench"
SCRIPTS = BUILD / "scripts"
# If a client gave up, its abandoned work would burden the next cell.
TIMEOUT_S = 60
EXIT_LIMIT_S = 180
GRPC_SOURCE = Path(__file__).with_name("grpc_client.c")
GRPC_SERVICE = "/inference.GRPCInferenceService/"
_PREFIX_BYTES = 4

# wrk counts a status above 399 as an error; times are in microseconds.
SCRIPT = """\
{request}
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\nRESULT {{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "p999_us": %d, "errors": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""
# Connections send the bodies in rotation.
POST = """\
local bodies, at = {{}}, 0
for _, path in ipairs({{{bodies}}}) do
  local file = io.open(path, "rb")
  bodies[#bodies + 1] = file:read("*a")
  file:close()
end
wrk.method = "POST"
{headers}
wrk.body = bodies[1]
if #bodies > 1 then
  request = function()
    at = at % #bodies + 1
    return wrk.format(nil, nil, nil, bodies[at])
  end
end
"""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The result of one run of a client. Times in milliseconds; `errors` were refused, broken, late or not 2xx/3xx."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    errors: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def require_wrk() -> str:
    """The path of wrk. SystemExit says how to install it if it is missing."""
    path = shutil.which("wrk")
    if path is None:
        raise SystemExit("`wrk` is not installed. On Debian and Ubuntu: apt install wrk")
    return path


def write_script(name: str, *bodies: bytes, headers: dict[str, str] | None = None) -> Path:
    """A script that sends `bodies` with POST in rotation, or a plain GET without any."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    request = ""
    if bodies:
        paths = [SCRIPTS / f"{name}.{index}.body" for index in range(len(bodies))]
        for path, body in zip(paths, bodies, strict=True):
            path.write_bytes(body)
        # JSON and Lua escape printable ASCII alike.
        lines = (f"wrk.headers[{json.dumps(key)}] = {json.dumps(value)}" for key, value in (headers or {}).items())
        request = POST.format(bodies=",".join(json.dumps(str(path)) for path in paths), headers="\n".join(lines))
    script = SCRIPTS / f"{name}.lua"
    script.write_text(SCRIPT.format(request=request))
    return script


def run_wrk(url: str, script: Path, *, connections: int, seconds: int) -> ClientResult:
    """Keep `connections` busy for `seconds` from one thread."""
    return finish(start_wrk(url, script, connections=connections, seconds=seconds), seconds + EXIT_LIMIT_S)


def start_wrk(url: str, script: Path, *, connections: int, seconds: int) -> subprocess.Popen[str]:
    """Start a run without waiting for its end. SIGINT ends it at once."""
    return _start(
        require_wrk(),
        "--threads=1",
        f"--connections={connections}",
        f"--duration={seconds}s",
        f"--timeout={TIMEOUT_S}s",
        "--latency",
        f"--script={script}",
        url,
    )


def _start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], within_s: float = EXIT_LIMIT_S) -> ClientResult:
    """Wait for the end of a run. RuntimeError if it reports no result; it is killed if it takes longer than allowed."""
    try:
        output, errors = process.communicate(timeout=within_s)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    for line in output.splitlines():
        if line.startswith("RESULT "):
            reported = json.loads(line.removeprefix("RESULT "))
            return ClientResult(
                requests=reported["requests"],
                seconds=reported["duration_us"] / 1e6,
                p50_ms=reported["p50_us"] / 1e3,
                p99_ms=reported["p99_us"] / 1e3,
                p999_ms=reported["p999_us"] / 1e3,
                errors=reported["errors"],
            )
    raise RuntimeError(f"the client reported no result: {output}{errors}")


def require_grpc_client() -> Path:
    """The compiled client. SystemExit says how to install a compiler if there is none."""
    program = BUILD / "grpc_client"
    if program.exists() and program.stat().st_mtime > GRPC_SOURCE.stat().st_mtime:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "The gRPC client is written in C and there is no compiler. On Debian and Ubuntu: apt install gcc"
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(program), str(GRPC_SOURCE)], check=True)
    return program


def write_message(name: str, message: bytes) -> Path:
    """Write a message as gRPC frames it: uncompressed, with its length."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    path = SCRIPTS / f"{name}.grpc"
    path.write_bytes(b"\0" + len(message).to_bytes(_PREFIX_BYTES, "big") + message)
    return path


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """wrk sends `script` to `url`, where `server` answers with `model`."""

    server: Server
    model: str
    url: str
    script: Path

    def start(self, *, connections: int, seconds: int) -> subprocess.Popen[str]:
        """Start the client, whose result `finish` reads. SIGINT ends it at once."""
        return start_wrk(self.url, self.script, connections=connections, seconds=seconds)


@dataclass(frozen=True, slots=True)
class GrpcLoad:
    """Sends the framed message in `message`, `in_flight` at a time on each connection.

    `streams` sends the messages of a connection on one call of ModelStreamInfer; otherwise each has its own ModelInfer.
    `connections` replaces the number that the other loads of a row have, unless it is 0.
    """

    server: Server
    model: str
    message: Path
    in_flight: int = 1
    streams: bool = False
    connections: int = 0

    def start(self, *, connections: int, seconds: int) -> subprocess.Popen[str]:
        """As that of HttpLoad."""
        method, mode = ("ModelStreamInfer", "stream") if self.streams else ("ModelInfer", "unary")
        return _start(
            str(require_grpc_client()),
            str(self.server.ports["grpc"]),
            str(self.connections or connections),
            str(seconds),
            str(self.message),
            GRPC_SERVICE + method,
            str(self.in_flight),
            mode,
        )


Load = HttpLoad | GrpcLoad
