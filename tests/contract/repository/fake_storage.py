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


@dataclass(frozen=True, slots=True)
class Truncate:
    """The body's first bytes arrive, then the connection is closed (FIN)."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Drip:
    """The body's first bytes arrive, and the others after `release()`; `paused` is set between them.

    The upstream is done meanwhile, so one with a single thread can serve others.
    """

    after: int = 0
    paused: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self._released.set()

    def pause(self) -> None:
        self.paused.set()
        self._released.wait()


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy answers in the upstream's place, with an empty body."""

    status: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    """One byte of the body is another one."""

    at: int = 0


Fault = Truncate | Drip | Answer | Corrupt


class FaultProxy(LocalServer):
    """A proxy between an HTTP client and an emulator, into which a test injects faults.

        with FaultProxy(emulator.endpoint) as proxy:
            proxy.inject(Truncate(after=1000), where="model.onnx")    # the next request whose first line has this text
            proxy.inject(Answer(503), times=3)                        # the next three requests
            client = make_client(proxy.endpoint)
            ...
            assert proxy.waiting == 0                                 # every fault has happened

    Faults wait in order; each request takes the first that fits it, and passes unharmed where none does. Offsets count
    from the beginning of that response's body, whatever range of an object it is. Every connection serves one request,
    so no fault touches another one. `requests` are the first lines of all requests, `passed_bytes` is the length of all
    bodies passed so far.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(_Exchange)
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "", parts.port or 80)
        self.requests: list[str] = []
        self.passed_bytes = 0
        self._faults: list[tuple[Fault, str]] = []
        self._drips: list[Drip] = []
        self._lock = threading.Lock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for drip in self._drips:
            drip.release()
        super().__exit__(kind, error, trace)

    @property
    def waiting(self) -> int:
        """How many faults no request has met yet."""
        with self._lock:
            return len(self._faults)

    def inject(self, fault: Fault, *, times: int = 1, where: str = "") -> None:
        """`fault` happens to the next `times` requests whose first line contains `where`."""
        with self._lock:
            self._faults.extend([(fault, where)] * times)
            if isinstance(fault, Drip):
                self._drips.append(fault)

    def met_by(self, request_line: str) -> Fault | None:
        with self._lock:
            self.requests.append(request_line)
            for index, (fault, where) in enumerate(self._faults):
                if where in request_line:
                    del self._faults[index]
                    return fault
        return None

    def note_passed(self, count: int) -> None:
        with self._lock:
            self.passed_bytes += count


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: FaultProxy, *arguments: Any) -> None:
        self._proxy = proxy
        with contextlib.suppress(OSError):  # a client or an upstream that disconnects ends this connection only
            super().__init__(*arguments)

    def do_GET(self) -> None:
        self.close_connection = True
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self._proxy.met_by(self.requestline)
        if isinstance(fault, Answer):
            self._send_head(fault.status, {"Content-Length": "0"})
            return
        upstream = http.client.HTTPConnection(*self._proxy.upstream, timeout=_LIMIT_S)
        with contextlib.closing(upstream):
            passed_on = {name: text for name, text in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            upstream.request(self.command, self.path, sent, passed_on)
            response = upstream.getresponse()
            self._send_head(
                response.status, {name: text for name, text in response.getheaders() if name.lower() not in _HOP_BY_HOP}
            )
            self._pass_body(response, fault)

    do_POST = do_HEAD = do_PUT = do_DELETE = do_GET

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, text in {**headers, "Connection": "close"}.items():
            self.send_header(name, text)
        self.end_headers()

    def _pass_body(self, response: http.client.HTTPResponse, fault: Fault | None) -> None:
        """The body, up to where `fault` strikes and what it leaves of the rest."""
        if fault is None:
            while piece := response.read(_PIECE_BYTES):
                self._pass(piece)
        elif isinstance(fault, Corrupt):
            body = bytearray(response.read())
            body[fault.at] ^= 0xFF
            self._pass(bytes(body))
        elif isinstance(fault, Truncate | Drip):
            self._pass(response.read(fault.after))
            if isinstance(fault, Drip):
                rest = response.read()
                fault.pause()
                self._pass(rest)

    def _pass(self, piece: bytes) -> None:
        self.wfile.write(piece)
        self._proxy.note_passed(len(piece))

    def log_message(self, format: str, *args: object) -> None:
        pass
