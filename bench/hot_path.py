"""Counts the files and functions of this project that one warmed infer request passes through, in one process.

    python -m bench.hot_path [--list] [--case a-binary]

It is a measure of how far a reader must go to follow a request: from the bytes on the connection to the bytes of the
response, on all threads. Comprehensions count as part of their function. `--list` prints every function with the
number of its calls, in the order of their first call.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gevent
import greenlet
from gunicorn.config import Config

from bench.cases import ADD_SUB, ADD_SUB_JSON, Case
from tests.project import ROOT
from trident.app.worker.connection import Connections
from trident.app.worker.http1.connection import Http1Connection, Http1Service
from trident.app.worker.io import CoarseClock
from trident.app.worker.limits import ConnectionLimits
from trident.core.engine.in_process import make_engine
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.lifecycle.options import EngineOptions

CASES = {case.key: case for case in (ADD_SUB, ADD_SUB_JSON)}
# Modules are imported through the links in the package `trident`.
PARTS = tuple(f"{ROOT / 'trident' / name}/" for name in ("core", "adapters", "app"))
WARM_REQUESTS = 200


class Recorder:
    """Notes the calls of this project's functions on every thread and greenlet while `on` is set."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Counter[CodeType] = Counter()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        # A greenlet has its own profile function.
        greenlet.settrace(lambda event, arguments: sys.setprofile(self._profile))

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if self.on and event == "call" and code.co_filename.startswith(PARTS) and not _is_part(code):
            self.calls[code] += 1


def _is_part(code: CodeType) -> bool:
    """Whether it is a comprehension."""
    return code.co_name in ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def message(case: Case) -> bytes:
    body, headers = case.body()
    lines = [f"POST {case.path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def exchange(client: socket.socket, request: bytes) -> None:
    """Send one request and take its whole response. Blocks."""
    client.sendall(request)
    received = client.recv(1 << 20)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), received
    (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < length:
        body += client.recv(1 << 20)


def drive(client: socket.socket, request: bytes, recorder: Recorder) -> None:
    """The client: on its own thread, which runs no function of the project."""
    for _ in range(WARM_REQUESTS):
        exchange(client, request)
    recorder.on = True
    exchange(client, request)
    recorder.on = False
    client.close()


def record(case: Case) -> Recorder:
    recorder = Recorder()
    hub = gevent.get_hub()
    options = {"repositories": (str(ROOT / "deploy" / "models"),), "cpu_metrics": False, "gpu_metrics": False}
    with tempfile.TemporaryDirectory() as cache:
        engine = make_engine(EngineOptions(cache_directory=cache, **options))  # type: ignore[arg-type]
        engine.start()
        assert engine.wait_loaded(60)
        application = V2Application(engine, HttpOptions(), GeventBridge(hub))
        connections = Connections(CoarseClock(), ConnectionLimits(), 10)
        service = Http1Service(application, ("localhost", 80), Config(), connections)
        client, served = socket.socketpair()
        served.setblocking(False)
        thread = threading.Thread(target=drive, args=(client, message(case), recorder))
        serving = gevent.spawn(Http1Connection(served, ("localhost", 1), service).serve)
        thread.start()
        serving.join()
        thread.join()
        engine.begin_exit()
        engine.finish(10)
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="a-binary", choices=CASES)
    parser.add_argument("--list", action="store_true", help="print every function")
    arguments = parser.parse_args()
    case = CASES[arguments.case]
    calls = record(case).calls
    assert calls, f"no function below {PARTS} was called"
    if arguments.list:
        for code, count in calls.items():
            print(f"{count:4}  {Path(code.co_filename).relative_to(ROOT / 'trident')}  {code.co_qualname}")
    files = {code.co_filename for code in calls}
    print(f"{case.key}: {len(files)} files, {len(calls)} functions, {calls.total()} calls")


if __name__ == "__main__":
    main()
