"""A collector of CloudEvents on the loopback, as a service behind KServe's logger is one."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.contract.servers.ports import HOST


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """`attributes` are those of the headers, without `ce-`."""

    attributes: dict[str, str]
    content_type: str
    data: Any


class EventCollector:
    """Collects events until the context ends. With `status` other than 200 it refuses all.

    `hold` makes it answer only when `release` is called.
    """

    def __init__(self, *, hold: bool = False) -> None:
        self.events: list[ReceivedEvent] = []
        self.requests = 0
        self.status = 200
        self._may_answer = threading.Event()
        if not hold:
            self._may_answer.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests += 1
                collector._may_answer.wait(60)
                if collector.status == 200:
                    names = {name.lower(): value for name, value in self.headers.items()}
                    attributes = {name[3:]: value for name, value in names.items() if name.startswith("ce-")}
                    collector.events.append(ReceivedEvent(attributes, names["content-type"], json.loads(body)))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/events"

    def release(self) -> None:
        self._may_answer.set()

    def __enter__(self) -> EventCollector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
