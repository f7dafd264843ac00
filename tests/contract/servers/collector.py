"""A service on the loopback that collects posted bodies."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.contract.servers.ports import HOST


class Collector:
    """Collects until the context ends. With `status` other than 200 it refuses all requests, and only counts them.

    `hold` makes it answer only when `release` is called.
    """

    path = "/"
    protocol = "HTTP/1.0"

    def __init__(self, *, status: int = 200, hold: bool = False) -> None:
        self.requests = 0
        self.status = status
        self._may_answer = threading.Event()
        if not hold:
            self._may_answer.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = collector.protocol

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests += 1
                collector._may_answer.wait(60)
                if collector.status == 200:
                    collector.take({name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def take(self, headers: Mapping[str, str], body: bytes) -> None:
        """Collect a request; the names of its headers are in lower case."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}{self.path}"

    def release(self) -> None:
        self._may_answer.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
