"""`wrk` as a function: bytes to send in, rates and percentiles out."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# If a client gave up, its abandoned work would burden the next cell.
TIMEOUT_S = 60
EXIT_LIMIT_S = 180

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
POST = """\
wrk.method = "POST"
local file = io.open({body}, "rb")
wrk.body = file:read("*a")
file:close()
{headers}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The result of one run of wrk. Times in milliseconds; `errors` were refused, broken, late or not 2xx/3xx."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    errors: int


def require_or_exit() -> str:
    """The path of wrk. SystemExit says how to install it if it is missing."""
    path = shutil.which("wrk")
    if path is None:
        raise SystemExit("`wrk` is not installed. On Debian and Ubuntu: apt install wrk")
    return path


def quoted(text: str) -> str:
    """A Lua string literal; JSON and Lua escape printable ASCII alike."""
    return json.dumps(text)


def write_script(path: Path, body: bytes | None = None, headers: dict[str, str] | None = None) -> Path:
    """A script that sends `body` with POST, or a plain GET. The body goes to a file beside the script."""
    request = ""
    if body is not None:
        body_path = path.with_suffix(".body")
        body_path.write_bytes(body)
        lines = "\n".join(f"wrk.headers[{quoted(name)}] = {quoted(value)}" for name, value in (headers or {}).items())
        request = POST.format(body=quoted(str(body_path)), headers=lines)
    path.write_text(SCRIPT.format(request=request))
    return path


def run(url: str, script: Path, *, connections: int, seconds: int) -> Load:
    """Keep `connections` busy for `seconds` from one thread."""
    return finish(start(url, script, connections=connections, seconds=seconds), seconds + EXIT_LIMIT_S)


def start(url: str, script: Path, *, connections: int, seconds: int) -> subprocess.Popen[str]:
    """Start a run without waiting for its end. SIGINT ends it at once."""
    command = [
        require_or_exit(),
        "--threads=1",
        f"--connections={connections}",
        f"--duration={seconds}s",
        f"--timeout={TIMEOUT_S}s",
        "--latency",
        f"--script={script}",
        url,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], within_s: float = EXIT_LIMIT_S) -> Load:
    """Wait for the end of a run. RuntimeError if it reports no result; it is killed if it takes longer than allowed."""
    try:
        output, errors = process.communicate(timeout=within_s)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    for line in output.splitlines():
        if line.startswith("RESULT "):
            seen = json.loads(line.removeprefix("RESULT "))
            return Load(
                requests=seen["requests"],
                seconds=seen["duration_us"] / 1e6,
                p50_ms=seen["p50_us"] / 1e3,
                p99_ms=seen["p99_us"] / 1e3,
                p999_ms=seen["p999_us"] / 1e3,
                errors=seen["errors"],
            )
    raise RuntimeError(f"wrk reported no result: {output}{errors}")
