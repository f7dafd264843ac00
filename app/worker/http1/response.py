"""One response: sends what a WSGI application returns.

Source: PEP 3333; RFC 9110 sections 6.4 and 8.6; RFC 9112 sections 6 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic_ns, perf_counter_ns
from types import TracebackType
from typing import Any, Final, Protocol
from wsgiref.types import WSGIApplication

from trident.app.worker.http1.request import RequestHead
from trident.app.worker.io import CoarseClock, size_of
from trident.core.http.front_end import TRACES_KEY
from trident.core.http.reply import BODY_KEY
from trident.core.inference.tensors import Buffer
from trident.core.memo import Memo

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade"}
)
_KNOWN_HEADERS: Final = 16

Headers = list[tuple[str, str]]


class ResponseHead:
    """The status line and headers of an application, rendered except for framing, connection and date.

    `declared` is the application's Content-Length, or None. `omits_body` is true for the statuses without a body.
    `upgrades`: another protocol follows the head, whose headers say which.
    """

    __slots__ = ("closes", "declared", "omits_body", "start", "upgrades")

    def __init__(self, status: str, headers: Headers) -> None:
        """Raises ValueError for an invalid status or header."""
        if not status[:3].isdecimal() or status[3:4] not in (" ", ""):
            raise ValueError(f"invalid response status {status!r}")
        self.omits_body = status.startswith(("1", "204", "304"))
        self.upgrades = status.startswith("101")
        self.declared: int | None = None
        self.closes = False
        lines = [f"HTTP/1.1 {status}\r\n"]
        for name, value in headers:
            lower = name.lower()
            if lower in _HOP_BY_HOP and not self.upgrades:
                self.closes = self.closes or (lower == "connection" and value.lower() == "close")
                continue
            if lower == "content-length":
                self.declared = int(value)
                if status.startswith(("1", "204")):
                    continue
            lines.append(f"{name}: {value}\r\n")
        self.start = "".join(lines).encode("latin-1")
        # One count for all lines: a line break inside a value would let a client forge a header.
        if self.start.count(b"\n") != len(lines) or self.start.count(b"\r") != len(lines):
            raise ValueError("a response header contains a line break")


class ResponseHeads:
    """Remembers the latest heads, because applications repeat themselves. Hub thread only."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Memo[tuple[object, ...], ResponseHead] = Memo(512)

    def head_for(self, status: str, headers: Headers) -> ResponseHead:
        """The head of this status and these headers. Raises ValueError as `ResponseHead` does."""
        key = (status, *headers)
        head = self._known.get(key)
        if head is None:
            head = ResponseHead(status, headers)
            if len(headers) <= _KNOWN_HEADERS and len(head.start) <= 1024:
                self._known[key] = head
        return head


_Failure = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

# How long a stream may keep the hub to itself.
_TURN_NS: Final = 5_000_000
_BODY_KEYS: Final = (BODY_KEY, "wsgi.input")


class Transport(Protocol):
    """The connection, as a response sees it."""

    def is_closing(self) -> bool:
        """Whether this response is the last one because the server stops. Called when the head is sent."""

    def send(self, parts: list[Buffer], size: int) -> None:
        """Send all parts, `size` bytes together. Takes over the list. Raises ClientGone if the client has left."""

    def take_turn(self) -> None:
        """Let other connections run."""


class Response:
    """The response to one request. `keep_alive` tells afterwards whether the connection may carry another one, and
    `size` how many bytes were sent, the head included. `began_ns` is when sending began, of a traced request only.

    A list or tuple of buffers is sent at once, with its length. Any other iterable is streamed, in chunks if the
    application does not declare the length. The parts may be any contiguous buffers.
    """

    __slots__ = (
        "_chunked",
        "_clock",
        "_head",
        "_headers",
        "_heads",
        "_is_http_1_0",
        "_left",
        "_omits_body",
        "_transport",
        "began_ns",
        "keep_alive",
        "size",
        "started",
        "status",
    )

    _head: ResponseHead
    _headers: Headers

    def __init__(self, transport: Transport, head: RequestHead, heads: ResponseHeads, clock: CoarseClock) -> None:
        self._transport = transport
        self._heads = heads
        self._clock = clock
        self._is_http_1_0 = not head.minor_version
        self._omits_body = head.is_head_request
        self._chunked = False
        self._left: int | None = None  # bytes that are missing for the declared Content-Length
        self.status = ""
        self.keep_alive = head.keep_alive
        self.started = False
        self.size = 0
        self.began_ns = 0

    def run(self, application: WSGIApplication, environ: dict[str, Any]) -> None:
        """Call the application and send what it returns. Raises the application's exceptions, and ClientGone."""
        parts = application(environ, self.start_response)
        if TRACES_KEY in environ:
            self.began_ns = monotonic_ns()
        if isinstance(parts, (list, tuple)) and not self.started:
            whole, size = self._whole(parts)
            # The parts and the request's body may lie in shared memory, and the client may be slow. So no reference may
            # remain here, except in `whole`, which the transport takes over.
            del parts
            for name in _BODY_KEYS:
                environ.pop(name, None)
            self.size = size
            self._transport.send(whole, size)
            return
        try:
            turn_ns = perf_counter_ns()
            for part in parts:
                self.write(part)
                if perf_counter_ns() - turn_ns > _TURN_NS:
                    # Parts that are always ready, and a client that always reads them, would stop the hub.
                    self._transport.take_turn()
                    turn_ns = perf_counter_ns()
            self._finish()
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()

    def start_response(
        self, status: str, headers: Headers, exc_info: _Failure | None = None
    ) -> Callable[[bytes], object]:
        """WSGI's `start_response`."""
        if exc_info is not None and exc_info[1] is not None and self.started:
            raise exc_info[1].with_traceback(exc_info[2])
        if exc_info is None and self.status:
            raise AssertionError("start_response was called twice")
        self.status = status
        self._headers = headers
        return self.write

    def write(self, part: Buffer) -> None:
        """Send one part of a streamed body, with the head before the first part."""
        size = size_of(part)
        if not size:
            return
        parts: list[Buffer] = [] if self.started else [self._head_bytes(None)]
        self.started = True
        if self._chunked:
            parts += (b"%x\r\n" % size, part, b"\r\n")
        elif not self._omits_body:
            if self._left is not None:
                self._left -= size
                if self._left < 0:
                    raise ValueError("the application sent more than the Content-Length that it declared")
            parts.append(part)
        if parts:
            self._send(parts)

    def _finish(self) -> None:
        if not self.started:
            head = self._head_bytes(0)
            self.started = True
            self._send([head])
        elif self._chunked:
            self._send([b"0\r\n\r\n"])
        if self._left and not self._omits_body:
            self.keep_alive = False  # bytes are missing: only the end of the connection tells the client

    def _send(self, parts: list[Buffer]) -> None:
        size = sum(map(size_of, parts))
        self.size += size
        self._transport.send(parts, size)

    def _whole(self, parts: Iterable[Buffer]) -> tuple[list[Buffer], int]:
        """The whole response, and its size in bytes."""
        size = 0
        filled: list[Buffer] = [b""]
        for part in parts:
            part_size = len(part) if type(part) is bytes else size_of(part)
            if part_size:
                size += part_size
                filled.append(part)
        filled[0] = head = self._head_bytes(size)
        self.started = True
        return ([head], len(head)) if self._omits_body else (filled, size + len(head))

    def _head_bytes(self, size: int | None) -> bytes:
        """The head of a body of `size` bytes; None: the size is unknown. Raises ValueError for an invalid head.

        Chooses the framing of the body if the application did not declare its length.
        """
        head = self._heads.head_for(self.status, self._headers)
        self._omits_body = self._omits_body or head.omits_body
        framing = b""
        if head.upgrades:
            return head.start + self._clock.date_end
        if head.declared is not None:
            if size is not None and size != head.declared and not self._omits_body:
                raise ValueError(
                    f"the application declared a Content-Length of {head.declared} and returned {size} bytes"
                )
            self._left = head.declared
        elif size is not None and not head.omits_body:
            framing = b"Content-Length: %d\r\n" % size if size or not self._omits_body else b""
        elif not self._omits_body:
            self._chunked = not self._is_http_1_0
            if self._chunked:
                framing = b"Transfer-Encoding: chunked\r\n"
            else:
                self.keep_alive = False
        if head.closes or self._transport.is_closing():
            self.keep_alive = False
        if not self.keep_alive:
            framing += b"Connection: close\r\n"
        elif self._is_http_1_0:
            framing += b"Connection: keep-alive\r\n"
        return head.start + framing + self._clock.date_end
