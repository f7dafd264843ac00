"""The load client: an event loop over plain sockets that keeps a server busy, in processes of its own.

A closed loop keeps a number of requests under way. An open loop sends at given times, whatever the server does, and
counts a latency from the time at which the request should have left: a request that a slow server delays is as late as
its caller would find it. Requests are made before; the client sends bytes and counts answers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import select
import signal
import socket
import ssl
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any

from hpack import Decoder, Encoder, HPACKError

from trident.app.worker.http2 import frames

_RECEIVE = 1 << 18
_CONNECT_S = 10.0
# An answer that takes longer after the end of a run is an error.
_DRAIN_S = 30.0
_MOST_HEADS = 1024
# Of a process in an open loop.
_MOST_CONNECTIONS = 256
_SHOWN_ERROR = 300


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the requests to it, which are sent in rotation, each connection beginning with another one; with
    `per_connection` the i-th connection has the i-th list to itself, and with `in_turn` all share one rotation.

    An HTTP request is the whole text; one of gRPC is the message, sent by `method` with `headers`. `streams`: all
    messages of a connection go on one call. `decoupled` messages say which response is the last.
    """

    host: str
    port: int
    requests: Sequence[Sequence[bytes]]
    method: str = ""
    headers: Sequence[tuple[str, str]] = ()
    streams: bool = False
    decoupled: bool = False
    per_connection: bool = False
    in_turn: bool = False
    tls: bool = False
    in_flight: int = 1

    def of(self, connection: int) -> Iterator[bytes]:
        if self.per_connection:
            return cycle(self.requests[connection % len(self.requests)])
        own = self.requests[0]
        at = connection % len(own)
        return cycle((*own[at:], *own[:at]))


@dataclass(slots=True)
class Sample:
    """One run. Times in seconds; `begun` is counted from the start of the run, and an open loop's is the intended time.

    `responses` is how many there were, more than requests if streams answer several times. `cpu` is the share of a core
    that the busiest client process took.
    """

    seconds: float
    begun: array[float] = field(default_factory=lambda: array("d"))
    latency: array[float] = field(default_factory=lambda: array("d"))
    responses: int = 0
    errors: int = 0
    error: str = ""
    cpu: float = 0.0

    def add(self, other: Sample) -> None:
        self.begun += other.begun
        self.latency += other.latency
        self.responses += other.responses
        self.errors += other.errors
        self.error = self.error or other.error
        self.cpu = max(self.cpu, other.cpu)


def http_request(method: str, path: str, headers: Mapping[str, object], body: bytes | None = None) -> bytes:
    """The whole text of a request; with a body it gets its length."""
    fields = headers if body is None else {**headers, "Content-Length": len(body)}
    lines = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + (body or b"")


def grpc_frame(message: bytes) -> bytes:
    """The message as gRPC frames it."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Broken(Exception):
    """A connection ended or cannot be understood; the argument says why."""


# Called with the time at which the request began, and a refusal or "".
_Done = Callable[[float, str], None]


class _Connection:
    """A socket that neither waits to send nor to receive. `free` is how many more requests may be sent now."""

    def __init__(self, target: Target, number: int) -> None:
        self.target = target
        self.requests = target.of(number)
        self.free = target.in_flight
        self.waiting: deque[memoryview] = deque()
        found = socket.create_connection((target.host, target.port), _CONNECT_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls:
            context = ssl.create_default_context()
            if target.method:
                context.set_alpn_protocols(["h2"])
            found = context.wrap_socket(found, server_hostname=target.host)
        found.setblocking(False)
        self.socket = found

    def send(self, begun: float) -> None:
        raise NotImplementedError

    def feed(self, data: bytes, done: _Done) -> None:
        raise NotImplementedError

    def next(self) -> bytes:
        self.free -= 1
        return next(self.requests)

    def write(self, data: bytes | memoryview) -> None:
        if self.waiting:
            self.waiting.append(memoryview(data))
            return
        try:
            sent = self.socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(data):
            self.waiting.append(memoryview(data)[sent:])

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, deque()
        for part in waiting:
            self.write(part)

    def receive(self, done: _Done) -> None:
        """Raises Broken."""
        while True:
            try:
                data = self.socket.recv(_RECEIVE)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not data:
                raise Broken("the server closed the connection")
            self.feed(data, done)
            # Bytes that TLS has decrypted wake no poll.
            if not (self.target.tls and self.socket.pending()):  # type: ignore[attr-defined]
                return

    def lost(self) -> list[float]:
        """Return the start times of the unanswered requests."""
        raise NotImplementedError


_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)


class HttpConnection(_Connection):
    """HTTP/1.1, one request at a time."""

    def __init__(self, target: Target, number: int) -> None:
        super().__init__(target, number)
        self._begun: float | None = None
        self._buffer = b""
        # Of the answer that comes: whether it is an error, and what is left of its body; -1 if it comes in chunks.
        self._is_error, self._closes = False, False
        self._left: int | None = None
        self._text = b""
        self._heads: dict[bytes, tuple[bool, int, bool]] = {}

    def send(self, begun: float) -> None:
        self._begun = begun
        self.write(self.next())

    def feed(self, data: bytes, done: _Done) -> None:
        if self._left is None:
            data = self._buffer + data if self._buffer else data
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._buffer = data
                return
            self._buffer = b""
            self._is_error, self._left, self._closes = self._head(data[:end])
            data = data[end:]
        if self._is_error and len(self._text) < _SHOWN_ERROR:
            self._text += data[:_SHOWN_ERROR]
        if self._left >= 0:
            self._left -= len(data)
            finished = self._left <= 0
        else:
            finished = self._chunks(data)
        if finished:
            begun, self._begun, self._left = self._begun, None, None
            self.free = 1
            if begun is None:
                raise Broken("the server answered what was not asked")
            done(begun, self._text.decode(errors="replace") or "an error" if self._is_error else "")
            self._text = b""
            if self._closes:
                raise Broken("")

    def _head(self, head: bytes) -> tuple[bool, int, bool]:
        """Return (answer is an error, its length, connection ends with it)."""
        found = self._heads.get(head)
        if found is None:
            length = _LENGTH.search(head)
            if not head.startswith(b"HTTP/1.") or (length is None and not _CHUNKED.search(head)):
                raise Broken(f"no answer of HTTP/1.1 with a length: {head[:80]!r}")
            found = (head[9:10] not in b"23", int(length[1]) if length else -1, _CLOSE.search(head) is not None)
            if len(self._heads) > _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = found
        return found

    def _chunks(self, data: bytes) -> bool:
        """Return True after the last chunk. Between calls the buffer has a chunk that is not whole."""
        data = self._buffer + data
        while (end := data.find(b"\r\n")) >= 0:
            size = int(data[:end].partition(b";")[0], 16)
            after = end + 2 + size + 2
            if len(data) < after:
                break
            if not size:
                self._buffer = b""
                return True
            data = data[after:]
        self._buffer = data
        return False

    def lost(self) -> list[float]:
        return [] if self._begun is None else [self._begun]


_REFILL = 1 << 30
# No dynamic table for what the server sends, so that equal trailers are equal bytes; no pushes; wide windows.
_HELLO = b"".join(
    (
        frames.PREFACE,
        frames.settings({1: 0, frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: frames.LARGEST_WINDOW}),
        frames.window_update(0, frames.LARGEST_WINDOW - frames.DEFAULT_WINDOW),
    )
)


class GrpcConnection(_Connection):
    """gRPC on HTTP/2: a call for each request, or one call whose messages are answered in their order."""

    def __init__(self, target: Target, number: int) -> None:
        super().__init__(target, number)
        scheme = "https" if target.tls else "http"
        fields = [
            (":method", "POST"),
            (":scheme", scheme),
            (":path", target.method),
            (":authority", f"{target.host}:{target.port}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "trident-bench"),
            *target.headers,
        ]
        encoder = Encoder()
        # The second one has indexes alone.
        self._blocks = [encoder.encode(fields), encoder.encode(fields)]
        self._stream = -1
        self._window = self._first_window = frames.DEFAULT_WINDOW
        self._frame_size = frames.DEFAULT_FRAME
        self._windows: dict[int, int] = {}
        self._unsent: deque[tuple[int, memoryview]] = deque()
        self._taken = 0
        self._buffer = b""
        self._messages: dict[int, bytearray] = {}
        # When they began: calls by their streams, and the messages of the one call.
        self._calls: dict[int, float] = {}
        self._asked: deque[float] = deque()
        self._trailers: dict[bytes, str] = {}
        self.write(_HELLO)

    def send(self, begun: float) -> None:
        message = self.next()
        head = b""
        if not self.target.streams or self._stream < 0:
            self._stream += 2
            head = frames.frame(frames.HEADERS, frames.END_HEADERS, self._stream, self._blocks[self._stream > 1])
            self._windows[self._stream] = self._first_window
        if self.target.streams:
            self._asked.append(begun)
        else:
            self._calls[self._stream] = begun
        room = min(self._window, self._windows[self._stream], self._frame_size)
        if len(message) <= room and not self._unsent:
            self.write(head + self._data(self._stream, message, is_last=True))
            return
        self.write(head)
        self._unsent.append((self._stream, memoryview(message)))
        self._push()

    def _data(self, stream: int, part: bytes | memoryview, *, is_last: bool) -> bytes:
        self._window -= len(part)
        self._windows[stream] -= len(part)
        flags = frames.END_STREAM if is_last and not self.target.streams else 0
        return frames.pack_head(len(part) << 8 | frames.DATA, flags, stream) + part

    def _push(self) -> None:
        """Send as much as the windows allow."""
        while self._unsent:
            stream, rest = self._unsent[0]
            room = min(self._window, self._windows.get(stream, 0), self._frame_size, len(rest))
            if room <= 0:
                if stream in self._windows:
                    return
                self._unsent.popleft()  # the server has reset it
                continue
            self.write(self._data(stream, rest[:room], is_last=room == len(rest)))
            self._unsent.popleft()
            if room < len(rest):
                self._unsent.appendleft((stream, rest[room:]))

    def feed(self, data: bytes, done: _Done) -> None:
        data = self._buffer + data if self._buffer else data
        at, size = 0, len(data)
        while size - at >= frames.HEAD_SIZE:
            length_and_kind, flags, stream = frames.read_head(data, at)
            begin = at + frames.HEAD_SIZE
            end = begin + (length_and_kind >> 8)
            if end > size:
                break
            self._frame(length_and_kind & 0xFF, flags, stream & frames.LARGEST_WINDOW, data[begin:end], done)
            at = end
        self._buffer = data[at:]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, done: _Done) -> None:
        if kind == frames.DATA:
            self._taken += len(payload)
            if self._taken > _REFILL:
                self.write(frames.window_update(0, self._taken))
                self._taken = 0
            if self.target.streams:
                self._answers(stream, payload, done)
        elif kind == frames.HEADERS and flags & frames.END_STREAM:
            self._ended(stream, self._status(payload), done)
        elif kind == frames.RST_STREAM:
            self._ended(stream, f"the stream was reset with {int.from_bytes(payload, 'big')}", done)
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE:
            (more,) = frames.read_uint32(payload, 0)
            if not stream:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
            self._push()
        elif kind == frames.GOAWAY:
            raise Broken(f"the server ended the connection: {payload[8 : 8 + _SHOWN_ERROR].decode(errors='replace')}")

    def _settings(self, payload: bytes) -> None:
        for name, value in frames.setting_pairs(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                for stream in self._windows:
                    self._windows[stream] += value - self._first_window
                self._first_window = value
            elif name == frames.MAX_FRAME_SIZE:
                self._frame_size = value
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._push()

    def _status(self, block: bytes) -> str:
        """Reason of a failed call, or ""."""
        found = self._trailers.get(block)
        if found is None:
            try:
                fields = {str(name): str(value) for name, value, *_ in Decoder().decode(block)}
            except HPACKError as error:
                raise Broken(f"trailers that cannot be read: {error}") from error
            status = fields.get("grpc-status", "missing")
            found = "" if status == "0" else f"grpc-status {status}: {fields.get('grpc-message', '')}"
            if len(self._trailers) > _MOST_HEADS:
                self._trailers.clear()
            self._trailers[block] = found
        return found

    def _ended(self, stream: int, error: str, done: _Done) -> None:
        if self.target.streams:
            raise Broken(error or "the server ended the stream")
        self._windows.pop(stream, None)
        self.free += 1
        done(self._calls.pop(stream, 0.0), error)

    def _answers(self, stream: int, payload: bytes, done: _Done) -> None:
        kept = self._messages.setdefault(stream, bytearray())
        kept += payload
        while len(kept) >= 5 and len(kept) >= (end := 5 + int.from_bytes(kept[1:5], "big")):
            message = bytes(kept[5:end])
            del kept[:end]
            if not self._asked:
                raise Broken("the server answered what was not asked")
            # A response is the second field of the message, an error the first one.
            error = "" if message[:1] == b"\x12" else message[2 : 2 + _SHOWN_ERROR].decode(errors="replace")
            if error or not self.target.decoupled or _is_final(message):
                self.free += 1
                done(self._asked.popleft(), error)

    def lost(self) -> list[float]:
        return [*self._calls.values(), *self._asked]


def _is_final(message: bytes) -> bool:
    from trident.core.protos.grpc_service_pb2 import ModelStreamInferResponse

    parameters = ModelStreamInferResponse.FromString(message).infer_response.parameters
    return bool(parameters["triton_final_response"].bool_param)


class Loop:
    """The connections of one process, which stay open from run to run."""

    def __init__(self, target: Target, number: int) -> None:
        self._target = target
        self._kind = GrpcConnection if target.method else HttpConnection
        # The first descriptor, because select takes low ones only; its timeouts are finer than a poll's.
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._opened = number
        self._rotation = target.of(0) if target.in_turn else None
        self.stopped = False

    def _open(self) -> _Connection:
        connection = self._kind(self._target, self._opened)
        connection.requests = self._rotation or connection.requests
        self._opened += 1
        self._connections[connection.socket.fileno()] = connection
        self._poll.register(connection.socket.fileno(), select.EPOLLIN)
        return connection

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._connections.pop(descriptor).socket.close()

    def run(self, seconds: float, concurrency: int, due: Sequence[float] | None = None) -> Sample:
        """Keep `concurrency` requests under way, or send at the times `due`."""
        sample = Sample(seconds)
        now = time.perf_counter
        self.stopped = False
        if due is None:
            for _ in range(-(-concurrency // self._target.in_flight) - len(self._connections)):
                self._open()
        cpu, start = time.process_time(), now()
        end = start + seconds
        under_way, sent, is_over = 0, 0, False
        idle: deque[_Connection] = deque(self._connections.values())

        def done(begun: float, error: str) -> None:
            nonlocal under_way
            under_way -= 1
            sample.responses += 1
            if error:
                sample.errors += 1
                sample.error = sample.error or error
            else:
                sample.begun.append(begun - start)
                sample.latency.append(now() - begun)

        def begin(connection: _Connection, at: float) -> None:
            nonlocal under_way
            under_way += 1
            connection.send(at)
            if connection.waiting:
                self._poll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

        if due is None:
            while under_way < concurrency:
                connection = idle.popleft()
                begin(connection, now())
                if connection.free:
                    idle.append(connection)
        while True:
            at = now()
            was_over, is_over = is_over, self.stopped or at >= end
            pause = max(0.0, end - at) + 0.05
            if due is not None and not was_over and not self.stopped:
                while sent < len(due) and start + due[sent] <= at:
                    if not idle and len(self._connections) < _MOST_CONNECTIONS:
                        idle.append(self._open())
                    if not idle:
                        break
                    connection = idle.popleft()
                    begin(connection, start + due[sent])
                    sent += 1
                    if connection.free:
                        idle.append(connection)
                if sent < len(due) and start + due[sent] > at:
                    pause = min(pause, start + due[sent] - now())
            if is_over and (not under_way or at > end + _DRAIN_S):
                break
            if due is not None and pause > 0:
                select.select([self._poll], [], [], pause)
            for descriptor, events in self._poll.poll(0 if due is not None else min(pause, 0.2)):
                connection = self._connections[descriptor]
                full = not connection.free
                try:
                    if events & select.EPOLLOUT:
                        connection.flush()
                        if not connection.waiting:
                            self._poll.modify(descriptor, select.EPOLLIN)
                    if events & ~select.EPOLLOUT:
                        connection.receive(done)
                    if due is not None:
                        if full and connection.free:
                            idle.append(connection)
                    elif not self.stopped and (at := now()) < end:
                        while connection.free:
                            begin(connection, at)
                except (OSError, Broken, ValueError) as error:
                    lost = connection.lost()
                    self._close(descriptor)
                    idle = deque(each for each in idle if each is not connection)
                    for begun in lost:
                        done(begun, str(error) or type(error).__name__)
                    if not self.stopped and now() < end and due is None:
                        connection = self._open()
                        while connection.free:
                            begin(connection, now())
        for connection in [each for each in self._connections.values() if each.lost()]:
            for begun in connection.lost():
                done(begun, f"no answer within {_DRAIN_S:g} s of the end")
            self._close(connection.socket.fileno())
        if due is not None and not self.stopped and sent < len(due):
            sample.errors += len(due) - sent
            sample.error = sample.error or f"all {_MOST_CONNECTIONS} connections were busy, so requests were never sent"
        sample.seconds = min(seconds, now() - start)
        sample.cpu = (time.process_time() - cpu) / max(now() - start, 1e-9)
        return sample


def _serve(pipe: Pipe, target: Target, number: int) -> None:
    """A client process: makes the runs that its parent asks for. SIGTERM ends a run early, and a closed pipe the
    process; an interrupt from the terminal is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = Loop(target, number)

    def stop(*_: object) -> None:
        loop.stopped = True

    signal.signal(signal.SIGTERM, stop)
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(loop.run(*asked))
        except OSError as error:
            pipe.send(error)


class LoadClient:
    """Client processes before one target. A context manager; `processes` share the load evenly.

    A run is `run`, or `start` and `finish`. `interrupted`: Ctrl-C has ended one early.
    """

    interrupted = False

    def __init__(self, target: Target, processes: int = 1) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipes: list[Pipe] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            # Sequences have numbers, so that no two processes may send the same ones.
            process = context.Process(target=_serve, args=(theirs, target, number * 1_000_000), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> LoadClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_CONNECT_S)
            process.kill()

    def run(
        self,
        seconds: float,
        *,
        concurrency: int = 1,
        due: Sequence[float] | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Sample:
        """One run, as `start` and `finish`."""
        self.start(seconds, concurrency=concurrency, due=due)
        return self.finish(tick)

    def start(self, seconds: float, *, concurrency: int = 1, due: Sequence[float] | None = None) -> None:
        """Begin a run: keep `concurrency` requests under way, or send at the times `due`."""
        count = len(self._pipes) if due is not None else min(len(self._pipes), concurrency)
        self._seconds, self._used = seconds, self._pipes[:count]
        for index, pipe in enumerate(self._used):
            share = (concurrency + count - 1 - index) // count
            own = None if due is None else due[index::count]
            pipe.send((seconds, share, own))

    def signal(self, number: int) -> None:
        """Send a signal to the processes: SIGSTOP and SIGCONT pause and continue a run, SIGTERM ends it early."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, number)

    def finish(self, tick: Callable[[], None] = lambda: None) -> Sample:
        """Wait for the end of the run. `tick` is called about five times a second, and Ctrl-C ends the run early.

        Raises OSError if the server cannot be reached.
        """
        sample = Sample(self._seconds)
        left: list[Any] = list(self._used)
        while left:
            try:
                for ready in wait(left, 0.2):
                    found = ready.recv()  # type: ignore[union-attr,call-arg]
                    left.remove(ready)
                    if isinstance(found, OSError):
                        raise found
                    assert isinstance(found, Sample)
                    sample.seconds = min(sample.seconds, found.seconds)
                    sample.add(found)
                tick()
            except KeyboardInterrupt:
                self.signal(signal.SIGTERM)
                self.interrupted = True
        return sample
