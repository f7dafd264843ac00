"""A container whose answers a test scripts, on a loopback port, in threads of this process."""

from __future__ import annotations

import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import until

HOST = "127.0.0.1"
LIMIT_S = 60.0


@dataclass
class Call:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """`body` is sent unchanged; `length` puts another length than the body's into the head."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


class ScriptedContainer:
    """A context manager. `answer` is called for each request on its own thread; `calls` are all requests in order."""

    def __init__(self, answer: Callable[[Call], Answer], port: int = 0) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self._server = _Listener((HOST, port), self)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])

    def paths(self) -> list[str]:
        return [f"{call.method} {call.path}" for call in self.calls]

    def __enter__(self) -> ScriptedContainer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def watch_until(watch: Callable[[threading.Event], object], condition: Callable[[], Any]) -> None:
    """Call `watch`, as probes do that go on until an event, on a thread until the condition holds."""
    stopped = threading.Event()
    thread = threading.Thread(target=watch, args=[stopped])
    thread.start()
    try:
        until(condition)
    finally:
        stopped.set()
        thread.join()


class _Listener(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them

    def __init__(self, address: tuple[str, int], container: ScriptedContainer) -> None:
        self.container = container
        super().__init__(address, _Connection)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        assert isinstance(sys.exception(), ConnectionError), sys.exception()


class _Connection(BaseHTTPRequestHandler):
    timeout = LIMIT_S
    server: _Listener

    def _exchange(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        call = Call(self.command, self.path, dict(self.headers), body)
        self.server.container.calls.append(call)
        answer = self.server.container.answer(call)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = do_DELETE = _exchange

    def log_message(self, format: str, *args: Any) -> None:
        return None
