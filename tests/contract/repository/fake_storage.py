"""Storages for what an emulator does not have: answers that a test defines, and faults on the way to an emulator."""

from __future__ import annotations

import contextlib
import http.client
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


# --- faults


_LIMIT_S = 60.0
_PIECE_BYTES = 1 << 16
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding")


@dataclass(slots=True)
class Drip:
    """The body's first bytes arrive, and the others after `release()`; `paused` is set between them.

    The upstream is done meanwhile, so one with a single thread can serve others.
    """

    after: int = 0
    is_met: bool = False
    paused: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self._released.set()

    def pause(self) -> None:
        self.paused.set()
        self._released.wait()


class FaultProxy(LocalServer):
    """A proxy between an HTTP client and an emulator, which stops in the middle of the answers that a test chooses.

    Every connection serves one request. `requests` are the first lines of all requests.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(_Exchange)
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "", parts.port or 80)
        self.requests: list[str] = []
        self._drips: list[tuple[Drip, str]] = []
        self._lock = threading.Lock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for drip, _ in self._drips:
            drip.release()
        super().__exit__(kind, error, trace)

    def inject(self, drip: Drip, where: str) -> None:
        """Stop in the answer to the next request whose first line contains `where`."""
        with self._lock:
            self._drips.append((drip, where))

    def met_by(self, request_line: str) -> Drip | None:
        with self._lock:
            self.requests.append(request_line)
            for drip, where in self._drips:
                if where in request_line and not drip.is_met:
                    drip.is_met = True
                    return drip
        return None


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: FaultProxy, *arguments: Any) -> None:
        self._proxy = proxy
        with contextlib.suppress(OSError):  # a client or an upstream that disconnects ends this connection only
            super().__init__(*arguments)

    def do_GET(self) -> None:
        self.close_connection = True
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        drip = self._proxy.met_by(self.requestline)
        upstream = http.client.HTTPConnection(*self._proxy.upstream, timeout=_LIMIT_S)
        with contextlib.closing(upstream):
            passed_on = {name: text for name, text in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            upstream.request(self.command, self.path, sent, passed_on)
            response = upstream.getresponse()
            self.send_response_only(response.status)
            for name, text in response.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, text)
            self.send_header("Connection", "close")
            self.end_headers()
            if drip is not None:
                self.wfile.write(response.read(drip.after))
                rest = response.read()
                drip.pause()
                self.wfile.write(rest)
            while piece := response.read(_PIECE_BYTES):
                self.wfile.write(piece)

    do_POST = do_HEAD = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass
