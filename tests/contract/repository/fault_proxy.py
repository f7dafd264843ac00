"""A proxy between an HTTP client and an emulator, into which a test injects faults.

    with FaultProxy(emulator.endpoint) as proxy:
        proxy.inject(Reset(after=1000), where="model.onnx")        # the next request whose first line has this text
        proxy.inject(Answer(503), times=3)                         # the next three requests
        client = make_client(proxy.endpoint)
        ...
        assert proxy.waiting == 0                                  # every fault has happened
        assert proxy.requests == ["GET /bucket/model.onnx HTTP/1.1", ...]

Faults wait in order; each request takes the first that fits it, and passes unharmed where none does. Offsets count from
the beginning of that response's body, whatever range of an object it is:

    Reset(after)      the body's first bytes arrive, then the connection is reset (RST)
    Truncate(after)   the body's first bytes arrive, then the connection is closed (FIN)
    Drip(after)       the body's first bytes arrive, and the others when the test calls `release()`; the test can wait
                      for the pause with `paused.wait(limit)`. The upstream is done meanwhile, so one with a single
                      thread can serve others. A second request for the same Drip passes at once after `release()`
    Answer(status)    the proxy answers in the upstream's place, with an empty body
    Corrupt(at)       one byte of the body is another one

Every connection serves one request (the proxy says `Connection: close` both ways), so no fault touches another request.
Bodies of requests must have a Content-Length.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from urllib.parse import urlsplit

from tests.contract.servers.ports import HOST

_LIMIT_S = 60.0
_PIECE_BYTES = 1 << 16
_LARGEST_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class Reset:
    after: int = 0


@dataclass(frozen=True, slots=True)
class Truncate:
    after: int = 0


@dataclass(frozen=True, slots=True)
class Drip:
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
    status: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    at: int = 0


Fault = Reset | Truncate | Drip | Answer | Corrupt


class FaultProxy:
    """A context manager: listens on entry. On exit it releases all drips and leaves no thread and no socket.

    Any thread may call its methods. `requests` are the first lines of all requests in the order of their arrival,
    `passed_bytes` is the length of all bodies passed to clients so far.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or HOST, parts.port or 80)
        self.requests: list[str] = []
        self.passed_bytes = 0
        self._faults: list[tuple[Fault, str]] = []
        self._drips: list[Drip] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._stopping = False

    def __enter__(self) -> FaultProxy:
        self._listener = socket.create_server((HOST, 0))
        self._acceptor = threading.Thread(target=self._accept, name="fault-proxy")
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stopping = True
            for drip in self._drips:
                drip.release()
            for each in (self._listener, *self._sockets):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
        self._acceptor.join(_LIMIT_S)
        self._listener.close()
        for thread in self._threads:
            thread.join(_LIMIT_S)
        left = [thread.name for thread in (self._acceptor, *self._threads) if thread.is_alive()]
        assert left == [], f"threads left behind: {left}"

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._listener.getsockname()[1]}"

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

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=[client], name="fault-proxy-connection")
            with self._lock:
                self._threads = [each for each in self._threads if each.is_alive()]
                self._threads.append(thread)
                thread.start()

    @contextlib.contextmanager
    def _open(self, connection: socket.socket) -> Iterator[None]:
        """Closes `connection` at the end; until then the proxy's exit interrupts whoever waits on it."""
        with connection:
            with self._lock:
                if self._stopping:
                    raise ConnectionAbortedError("the proxy stops")
                self._sockets.add(connection)
            try:
                yield
            finally:
                with self._lock:
                    self._sockets.discard(connection)

    def _serve(self, client: socket.socket) -> None:
        # A client or an upstream that disconnects ends this connection only.
        with contextlib.suppress(OSError), self._open(client):
            head, body = _read_head(client)
            if not head:
                return
            if _header(head, "Expect"):
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(_header(head, "Content-Length") or 0)
            while len(body) < length and (piece := client.recv(_PIECE_BYTES)):
                body += piece
            fault = self._met_by(head.partition(b"\r\n")[0].decode("latin-1"))
            if isinstance(fault, Answer):
                client.sendall(_answer(fault.status))
                return
            upstream = socket.create_connection(self._upstream, _LIMIT_S)
            with self._open(upstream):
                upstream.sendall(_one_exchange(head) + body)
                self._relay(upstream, client, fault)

    def _met_by(self, request_line: str) -> Fault | None:
        with self._lock:
            self.requests.append(request_line)
            for index, (fault, where) in enumerate(self._faults):
                if where in request_line:
                    del self._faults[index]
                    return fault
        return None

    def _relay(self, upstream: socket.socket, client: socket.socket, fault: Fault | None) -> None:
        """The response from `upstream`, up to where `fault` strikes and what it leaves of the rest."""
        head, first = _read_head(upstream)
        if not head:
            return
        client.sendall(_one_exchange(head))
        body = _body(upstream, first)
        if isinstance(fault, Corrupt):
            body = _corrupted(body, fault.at)
        if not isinstance(fault, Reset | Truncate | Drip):
            for piece in body:
                self._pass(client, piece)
            return
        rest = self._pass_up_to(client, body, fault.after)
        if isinstance(fault, Drip):
            rest += b"".join(body)
            upstream.close()
            fault.pause()
            self._pass(client, rest)
        elif isinstance(fault, Reset):
            _reset(client)

    def _pass_up_to(self, client: socket.socket, body: Iterator[bytes], count: int) -> bytes:
        """Pass `count` bytes; what of the last piece is beyond them."""
        while count:
            piece = next(body, b"")
            self._pass(client, piece[:count])
            if len(piece) > count or not piece:
                return piece[count:]
            count -= len(piece)
        return b""

    def _pass(self, client: socket.socket, piece: bytes) -> None:
        client.sendall(piece)
        with self._lock:
            self.passed_bytes += len(piece)


def _read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head with its empty line, and the bytes after it. Both are empty if the peer has closed the connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(_PIECE_BYTES)
        if not piece:
            return b"", b""
        received += piece
        assert len(received) <= _LARGEST_HEAD or b"\r\n\r\n" in received, "a head without an end"
    head, _, rest = received.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _header(head: bytes, name: str) -> str:
    for line in head.decode("latin-1").split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.lower() == name.lower():
            return value.strip()
    return ""


def _one_exchange(head: bytes) -> bytes:
    """The head, changed so that the connection ends with the response."""
    dropped = (b"connection:", b"keep-alive:", b"expect:")
    lines = [line for line in head.removesuffix(b"\r\n\r\n").split(b"\r\n") if not line.lower().startswith(dropped)]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _body(upstream: socket.socket, first: bytes) -> Iterator[bytes]:
    if first:
        yield first
    while piece := upstream.recv(_PIECE_BYTES):
        yield piece


def _corrupted(body: Iterator[bytes], at: int) -> Iterator[bytes]:
    for piece in body:
        if 0 <= at < len(piece):
            piece = piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :]
        at -= len(piece)
        yield piece


def _answer(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


def _reset(client: socket.socket) -> None:
    """Close with RST after the client's kernel has received everything, because RST discards unsent bytes."""
    deadline = time.monotonic() + _LIMIT_S
    while struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, b"\0" * 4))[0] and time.monotonic() < deadline:
        time.sleep(0.001)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
