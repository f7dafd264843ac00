"""An HTTP server whose answers a test defines, for cases that an emulator does not have."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.contract.servers.ports import HOST


@dataclass(frozen=True)
class Request:
    """`path` is unquoted; `query` has the first value of each parameter; names in `headers` are in lower case."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass
class Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class LocalServer:
    """A context manager: listens on entry, and on exit leaves no thread and no socket.

    `handler` makes the handler of a connection from this server and what http.server gives it. `thread` is the one that
    accepts connections.
    """

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self._handler = handler

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer((HOST, 0), partial(self._handler, self))
        self._server.daemon_threads = False  # closing waits for its threads
        self.thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"


class FakeStorage(LocalServer):
    """Every request gets what `answer` makes of it, which a test may exchange; `requests` are those that came."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        super().__init__(_Connection)
        self.answer = answer
        self.requests: list[Request] = []


class _Connection(BaseHTTPRequestHandler):
    def __init__(self, storage: FakeStorage, *arguments: Any) -> None:
        self.storage = storage
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(unquote(url.path), query, headers)
        self.storage.requests.append(request)
        reply = self.storage.answer(request)
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_POST = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def as_json(content: object, status: int = 200) -> Reply:
    return Reply(status, {"Content-Type": "application/json"}, json.dumps(content).encode())
