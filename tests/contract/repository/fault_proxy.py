"""A proxy between an HTTP client and an emulator, into which a test injects faults.

    with FaultProxy(emulator.endpoint) as proxy:
        proxy.inject(Reset(after=1000), where="model.onnx")        # the next request whose first line has this text
        proxy.inject(Answer(503), times=3)                         # the next three requests
        client = make_client(proxy.endpoint)
        ...
        assert proxy.waiting == 0                                  # every fault has happened
        assert proxy.requests == ["GET /bucket/model.onnx HTTP/1.1", ...]

Faults wait in order; each request takes the first that fits it, and passes unharmed where none does. Offsets count from
the beginning of that response's body, whatever range of an object it is. Every connection serves one request, so no
fault touches another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import socket
import struct
import termios
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.contract.repository.fake_storage import LocalServer

_LIMIT_S = 60.0
_PIECE_BYTES = 1 << 16
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Reset:
    """The body's first bytes arrive, then the connection is reset (RST)."""

    after: int = 0


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


Fault = Reset | Truncate | Drip | Answer | Corrupt


class FaultProxy(LocalServer):
    """`requests` are the first lines of all requests, `passed_bytes` is the length of all bodies passed so far."""

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
        elif isinstance(fault, Reset | Truncate | Drip):
            self._pass(response.read(fault.after))
            if isinstance(fault, Drip):
                rest = response.read()
                fault.pause()
                self._pass(rest)
            elif isinstance(fault, Reset):
                self._reset()

    def _pass(self, piece: bytes) -> None:
        self.wfile.write(piece)
        self._proxy.note_passed(len(piece))

    def _reset(self) -> None:
        """Close with RST after the client's kernel has received everything, because RST discards unsent bytes."""
        deadline = time.monotonic() + _LIMIT_S
        unsent = b"\1"
        while any(unsent) and time.monotonic() < deadline:
            unsent = fcntl.ioctl(self.connection, termios.TIOCOUTQ, b"\0" * 4)
            time.sleep(0.001)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass
