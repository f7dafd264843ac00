"""One call: the receiver of a stream, and the way back.

    Call
    ├── UnaryCall           one request
    │   ├── RpcCall           an RPC that a function serves
    │   ├── InferCall         ModelInfer
    │   └── WatchCall         grpc.health.v1 Watch
    ├── StreamInferCall     ModelStreamInfer
    ├── ReflectionCall      server reflection
    └── RefusedCall         a call that was refused by its head

Source: gRPC's `PROTOCOL-HTTP2.md`, core/grpc/transport.py.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from struct import Struct
from time import monotonic, monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from trident.core.engine.protocol import Engine
from trident.core.errors import ServerStopping
from trident.core.frontend.request import Allocate, RequestBody
from trident.core.frontend.trace_events import client_trace
from trident.core.grpc.status import GrpcError, Status, log_error, status_of
from trident.core.grpc.transport import (
    NOT_GRPC,
    NOT_GRPC_TRAILERS,
    OK,
    ONLY_OK,
    HeaderFields,
    Receiver,
    Stream,
    deflate,
    error_trailers,
    http_refusal,
    inflate,
    too_large,
)
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer
from trident.core.lifecycle.state import Phase
from trident.core.observability.switches import SWITCHES
from trident.core.waiting.waiting import Deadlines

if TYPE_CHECKING:
    from trident.core.grpc.application import GrpcFrontEnd
    from trident.core.grpc.transport import RequestHead


Rpc = Callable[["GrpcFrontEnd", "Buffer"], bytes]
MakeCall = Callable[["GrpcFrontEnd", "Stream", "RequestHead"], "Call"]


class Method:
    """One row of the method table of one front end.

    `group` is the group of restricted protocols, "" for none. `make_call` makes the receiver of a call. `rpc` serves a
    call that has one request and one response; `waits`: it may wait, so it gets a greenlet of its own. `ended` counts
    the calls by their status.
    """

    __slots__ = ("ended", "group", "make_call", "name", "path", "rpc", "service", "waits")

    def __init__(
        self, service: str, name: str, group: str, make_call: MakeCall, rpc: Rpc | None = None, *, waits: bool = False
    ) -> None:
        self.service = service
        self.name = name
        self.path = f"/{service}/{name}"
        self.group = group
        self.make_call = make_call
        self.rpc = rpc
        self.waits = waits
        self.ended = [0] * len(Status)


# Source: docs/http.md "The access log".


class CountedStream(Stream):
    """`received` and `sent` are the bytes of messages with their prefixes, as they are on the wire."""

    __slots__ = ("_stream", "received", "sent")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.received = 0
        self.sent = 0

    @property
    def unsent(self) -> int:
        return self._stream.unsent

    @property
    def peer(self) -> str:
        return self._stream.peer

    def send(
        self,
        headers: HeaderFields | None,
        parts: Sequence[Buffer] = (),
        size: int = 0,
        trailers: HeaderFields | None = None,
    ) -> None:
        self.sent += size
        self._stream.send(headers, parts, size, trailers)

    def pause(self) -> None:
        self._stream.pause()

    def resume(self) -> None:
        self._stream.resume()

    def reset(self) -> None:
        self._stream.reset()

    def release(self) -> None:
        self._stream.release()


class CountedReceiver(Receiver):
    """`receiver`, which was made for `stream`."""

    __slots__ = ("_receiver", "_stream")

    def __init__(self, stream: CountedStream, receiver: Receiver) -> None:
        self._stream = stream
        self._receiver = receiver

    def room(self, size: int) -> memoryview | None:
        return self._receiver.room(size)

    def filled(self, size: int) -> None:
        self._stream.received += size
        self._receiver.filled(size)

    def take(self, content: Buffer) -> None:
        self._stream.received += len(content)
        self._receiver.take(content)

    def leave_shared(self) -> None:
        self._receiver.leave_shared()

    def end(self) -> None:
        self._receiver.end()

    def cancel(self) -> None:
        self._receiver.cancel()

    def moved(self) -> None:
        self._receiver.moved()

    def drained(self) -> None:
        self._receiver.drained()


# Source: docs/http.md "The access log", docs/grpc.md.


_log = logging.getLogger("trident.access")

_LONGEST = 1024


def log_ended(
    client: str,
    path: str,
    status: Status,
    began_ns: int,
    stream: CountedStream,
    answer: InferenceResponse | None = None,
) -> None:
    """Log a call. `stream` has counted its bytes; `answer` is the one response of an inference, if there is one."""
    fields: dict[str, object] = {
        "duration_ms": round((time.perf_counter_ns() - began_ns) / 1_000_000, 3),
        "received_bytes": stream.received,
        "sent_bytes": stream.sent,
    }
    if answer is not None:
        if answer.id:
            fields["request_id"] = answer.id[:_LONGEST]
        fields["model"] = answer.model_name
        if answer.model_version > 0:
            fields["version"] = answer.model_version
        if answer.times is not None:
            fields |= {name.removeprefix("timing_"): value for name, value in answer.times.parameters().items()}
    text = "".join([f" {name}={_plain(value)}" for name, value in fields.items()])
    path = path[:_LONGEST]
    client = client.rpartition(":")[0] or client  # without the port, as HTTP's lines
    extra = {"client": client, "method": "gRPC", "path": path, "status": status.name, **fields}
    _log.info('%s "gRPC %s" %s%s', client, path, status.name, text, extra=extra)


def _plain(value: object) -> str:
    """A value of a text line: quoted if it could be taken for more than one."""
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=') else text


# In this time a request on an open stream gets an error message, as from Triton. Then the stream ends as well:
# a client that only waits would hold up the stop until the server gives up.
_GRACE_S: Final = 2.0


class OpenStream(Protocol):
    """It must be hashable."""

    def leave(self) -> None:
        """The server goes: end, with an error, as soon as everything that the client has asked for is answered."""


class OpenStreams:
    """On the hub's thread."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._open: dict[OpenStream, None] = {}
        self._is_over = False

    def add(self, stream: OpenStream) -> None:
        self._open[stream] = None
        if self._is_over:
            self._deadlines.add(0.0, self)

    def remove(self, stream: OpenStream) -> None:
        self._open.pop(stream, None)

    def begin_exit(self) -> None:
        """The server stops: have all of them leave after a grace period."""
        self._deadlines.add(_GRACE_S, self)

    def expire(self) -> None:
        self._is_over = True
        for stream in list(self._open):
            stream.leave()


def stopping() -> ServerStopping:
    return ServerStopping("GRPC server is shutting down and has stopped accepting new requests.")


# Between two messages a client may wait as long as it likes.


LIMIT_S: Final = 60.0
# A client that has sent nothing for so long loses its message before others do.
SILENCE_S: Final = 2.0


class Receiving(Protocol):
    """It must be hashable. `received` is how many bytes of the message have arrived."""

    @property
    def received(self) -> int: ...

    @property
    def is_held_up(self) -> bool:
        """Whether it is this server that does not let the client go on."""

    def stall(self) -> None:
        """Nothing has arrived for LIMIT_S seconds at least."""

    def crowd_out(self) -> None:
        """Its memory is needed: refuse the message."""


class _Progress:
    """`received` bytes of a message have arrived, the last of them at `since`, in seconds; `seen` at the last look."""

    __slots__ = ("received", "seen", "since")

    def __init__(self) -> None:
        self.received = 0
        self.seen = -1
        self.since = 0.0


class UnfinishedMessages:
    """On the hub's thread.

    Together they may hold `limit` bytes besides the largest of them, so that one alone is never refused. When they hold
    more, the largest of those whose clients are silent are refused; if that is not enough, the largest of all, so that
    clients of large messages do not keep out the others. So many are refused that an eighth of the limit is free,
    because a look at all messages takes time.
    """

    def __init__(self, deadlines: Deadlines, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self._deadlines = deadlines
        self._limit = limit
        self._now = now
        self._messages: dict[Receiving, _Progress] = {}
        self._total = 0
        # The total at which to look at them again.
        self._crowded = limit
        self._is_looking = False

    @property
    def total(self) -> int:
        """The bytes of all of them."""
        return self._total

    def __len__(self) -> int:
        return len(self._messages)

    def grew(self, receiving: Receiving) -> None:
        """A part of a message has arrived. This or other messages may be refused now."""
        progress = self._messages.get(receiving)
        if progress is None:
            progress = self._messages[receiving] = _Progress()
            self._look_later()
        received = receiving.received
        self._total += received - progress.received
        progress.received = received
        progress.since = self._now()
        if self._total > self._crowded:
            self._make_room()

    def remove(self, receiving: Receiving) -> None:
        """All of it has arrived, or nobody waits for it."""
        progress = self._messages.pop(receiving, None)
        if progress is not None:
            self._total -= progress.received
            if self._total <= self._limit:
                self._crowded = self._limit

    def expire(self) -> None:
        """Look for silent clients."""
        self._is_looking = False
        for receiving, progress in list(self._messages.items()):
            if progress.received != progress.seen or receiving.is_held_up:
                progress.seen = progress.received
            else:
                receiving.stall()
        self._look_later()

    def _look_later(self) -> None:
        if self._messages and not self._is_looking:
            self._is_looking = True
            self._deadlines.add(LIMIT_S, self)

    def _make_room(self) -> None:
        by_size = sorted(self._messages, key=attrgetter("received"))
        most = by_size[-1].received + self._limit
        if self._total > most:
            enough = most - self._limit // 8
            now = self._now()
            silent = [each for each in by_size if self._is_silent(each, now)]
            for candidates in (silent, by_size):
                while candidates and self._total > enough:
                    receiving = candidates.pop()
                    if receiving in self._messages:
                        receiving.crowd_out()
                        self.remove(receiving)
        self._crowded = max(self._limit, self._total + self._limit // 64)

    def _is_silent(self, receiving: Receiving, now: float) -> bool:
        return not receiving.is_held_up and now - self._messages[receiving].since > SILENCE_S


# Source: gRPC's `PROTOCOL-HTTP2.md`, "Length-Prefixed-Message".


PREFIX: Final = 5
read_prefix: Final[Callable[[Buffer], tuple[int, int]]] = Struct(">BI").unpack_from
"""The flag of a message and its size in bytes."""
NO_MEMORY = "there is no memory for a message of {} bytes"


class Message(NamedTuple):
    """A whole message. `compressed` is the flag of its prefix."""

    compressed: bool
    content: Buffer


class MessageReader:
    """Takes the bytes of one stream. A large message is received in place, in memory of `allocate` where it has some.

    A message longer than `limit` bytes is refused by its prefix, before there is memory for it. `offset(size)` is where
    in a message of `size` bytes the tensors probably begin: that byte is aligned. All methods raise GrpcError; after
    that the reader is of no use.
    """

    __slots__ = ("_allocate", "_body", "_compressed", "_limit", "_offset", "_prefix", "_slow")

    def __init__(self, limit: int, allocate: Allocate | None, offset: Callable[[int], int]) -> None:
        self._limit = limit
        self._offset = offset
        self._allocate = allocate
        self._prefix = bytearray()
        self._compressed = False
        self._body: RequestBody | None = None
        self._slow: RequestBody | None = None

    @property
    def is_between(self) -> bool:
        """Whether the bytes taken so far end with the end of a message."""
        return self._body is None and not self._prefix

    @property
    def received(self) -> int:
        """How many bytes of the message that is arriving are there."""
        return len(self._prefix) if self._body is None else PREFIX + self._body.got

    def room(self, size: int) -> memoryview | None:
        """Memory for the next bytes of a message, at most `size`; None if the next ones have to be taken."""
        body = self._body
        if body is None:
            return None
        try:
            return body.room()[:size]
        except MemoryError:
            raise self._no_memory(body.length) from None

    def filled(self, size: int) -> Message | None:
        """`size` bytes were received into the room. Returns the message if that was its end."""
        body = self._body
        assert body is not None
        body.got += size
        if body.got < body.length:
            return None
        self._body = self._slow = None
        return Message(self._compressed, body.memory)

    def leave_shared(self) -> None:
        """Move the message that was already being received at the last call out of the memory of `allocate`, as its
        client is slow. Raises MemoryError."""
        if self._body is not None and self._body is self._slow:
            self._body.leave_shared()
        self._slow = self._body

    def take(self, content: Buffer) -> list[Message]:
        """The messages that end within `content`. It is copied."""
        view = memoryview(content)
        messages: list[Message] = []
        while view:
            if self._body is not None:
                room = self._body_room(len(view))
                size = len(room)
                room[:] = view[:size]
                message = self.filled(size)
            else:
                size = min(PREFIX - len(self._prefix), len(view))
                self._prefix += view[:size]
                message = self._begin(view[size:]) if len(self._prefix) == PREFIX else None
                if message is not None:
                    size += len(message.content)
            if message is not None:
                messages.append(message)
            view = view[size:]
        return messages

    def _body_room(self, size: int) -> memoryview:
        room = self.room(size)
        assert room is not None
        return room

    def _begin(self, rest: memoryview) -> Message | None:
        """A message whose prefix is complete, and whose content begins with `rest`; returned if that has all of it."""
        flag = self._prefix[0]
        size = int.from_bytes(self._prefix[1:], "big")
        self._prefix.clear()
        if flag > 1:
            raise GrpcError(Status.INTERNAL, f"a message begins with the flag {flag}, expected 0 or 1")
        if size > self._limit:
            raise too_large(size, self._limit)
        self._compressed = flag == 1
        if len(rest) >= size:
            return Message(self._compressed, bytes(rest[:size]))
        try:
            self._body = RequestBody(size, b"", self._offset(size), self._allocate)
        except MemoryError:
            raise self._no_memory(size) from None
        return None

    @staticmethod
    def _no_memory(size: int) -> GrpcError:
        return GrpcError(Status.RESOURCE_EXHAUSTED, NO_MEMORY.format(size), hint="send fewer large messages at once")


# Source: grpc.health.v1's `health.proto`.


_LOOK_S = 0.25


class Watcher(Protocol):
    """It must be hashable."""

    def tell(self, ready: bool) -> None:
        """The server is ready, or not."""

    def tell_exit(self) -> None:
        """The server stops, and tells nothing more."""


class ReadinessWatch:
    """Looks at the engine four times a second while somebody watches. On the hub's thread."""

    def __init__(self, engine: Engine, deadlines: Deadlines) -> None:
        self._engine = engine
        self._deadlines = deadlines
        self._watchers: dict[Watcher, None] = {}
        self._is_looking = False

    def add(self, watcher: Watcher) -> None:
        """Tell it the readiness now, and each change."""
        self._watchers[watcher] = None
        self._tell(watcher)
        self._look_later()

    def remove(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def expire(self) -> None:
        """Look."""
        self._is_looking = False
        for watcher in list(self._watchers):
            self._tell(watcher)
        self._look_later()

    def _tell(self, watcher: Watcher) -> None:
        ready = self._engine.is_ready()
        if not ready and self._engine.phase().name == Phase.EXITING:
            self.remove(watcher)
            watcher.tell_exit()
        else:
            watcher.tell(ready)

    def _look_later(self) -> None:
        if self._watchers and not self._is_looking:
            self._is_looking = True
            self._deadlines.add(_LOOK_S, self)


# Deflate makes a message at most this much smaller.
MOST_INFLATED: Final = 1032
# 64 KB inflate and deflate in less than a millisecond: what is larger does so on another thread.
LARGE: Final = 65536
PLAIN: Final = b"\0"
COMPRESSED: Final = b"\1"
_STATUS_OK: Final = Status.OK


class Call(Receiver):
    """All of it runs on the hub's thread.

    A subclass has these:

    * `on_message(message)`: the next message of the client.
    * `on_end()`: the client has sent all its messages.
    * `on_cancel(cause)`: nobody wants answers any more; whatever still runs for this call is cancelled, once.
    * `moved()` and `drained()`: as in Receiver.

    `ended`: the client has its status, or has gone. `busy` counts what still runs for the call: its place at the server
    is free when it is 0, too. `started`: a header section was sent. `response` is what the access log tells of an
    inference. `opened_ns` is when the call began, in nanoseconds of the monotonic clock, 0 unless it may be traced.
    """

    __slots__ = (
        "_began_ns",
        "_client",
        "_due",
        "_reader",
        "_stream",
        "_tick",
        "busy",
        "ended",
        "front_end",
        "head",
        "opened_ns",
        "response",
        "started",
    )

    def __init__(self, front_end: GrpcFrontEnd, stream: Stream, head: RequestHead) -> None:
        self.front_end = front_end
        self.head = head
        self._stream: Stream | None = stream
        self._reader: MessageReader | None = None
        self.started = False
        self.ended = False
        self.busy = 0
        self._tick = 0
        # Seconds of the monotonic clock, 0 without a deadline.
        self._due = 0.0
        self.response: InferenceResponse | None = None
        self._began_ns = 0
        self._client = ""
        # Only of a call whose bytes are counted from its beginning.
        if isinstance(stream, CountedStream):
            self._began_ns = perf_counter_ns()
            self._client = stream.peer
        self.opened_ns = monotonic_ns() if front_end.trace_gate.is_open else 0
        if head.timeout_s is not None:
            self._due = monotonic() + head.timeout_s
            self._tick = front_end.deadlines.add(head.timeout_s, self)

    def note_client_trace(self, request: InferenceRequest) -> None:
        """Note to which trace of its client a request belongs."""
        if self.front_end.trace_gate.reads_context:
            metadata = self.head.metadata
            request.trace = client_trace(metadata.text("traceparent"), metadata.text("tracestate"))

    # --- what a subclass has

    def on_message(self, message: Buffer) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        raise NotImplementedError

    def on_cancel(self, cause: CancelCause) -> None:
        """Nothing runs."""

    # --- the receiver of the stream

    def room(self, size: int) -> memoryview | None:
        if self._reader is None or self.ended:
            return None
        try:
            return self._reader.room(size)
        except GrpcError as error:
            self.fail(error)
            return None

    def filled(self, size: int) -> None:
        if self._reader is None or self.ended:
            return
        message = self._reader.filled(size)
        if message is None:
            self.front_end.unfinished.grew(self)
        else:
            self.front_end.unfinished.remove(self)
            self._receive(message)

    def take(self, content: Buffer) -> None:
        if self.ended:
            return
        reader = self._reader
        if reader is None:
            size = len(content) - PREFIX
            if 0 <= size <= self.front_end.options.max_message_size and read_prefix(content) == (0, size):
                self.on_message(bytes(content[PREFIX:]))
                return
            front_end = self.front_end
            limit = front_end.options.max_message_size
            reader = self._reader = MessageReader(limit, front_end.allocate, front_end.tensor_offset)
        try:
            messages = reader.take(content)
            if reader.is_between:
                self.front_end.unfinished.remove(self)
            else:
                self.front_end.unfinished.grew(self)
            for message in messages:
                self._receive(message)
        except GrpcError as error:
            self.fail(error)

    @property
    def received(self) -> int:
        """How many bytes of an unfinished message have arrived."""
        return self._reader.received if self._reader is not None else 0

    @property
    def is_held_up(self) -> bool:
        """Whether the client is kept from sending more."""
        return False

    def stall(self) -> None:
        """Nothing more of a message has arrived for a long time."""
        self.fail(GrpcError(Status.DEADLINE_EXCEEDED, "the request was not received in time"))

    def crowd_out(self) -> None:
        """Others need the memory of an unfinished message."""
        limit = self.front_end.options.max_unfinished_size
        self.fail(
            GrpcError(
                Status.RESOURCE_EXHAUSTED,
                f"Too many large messages are being received: they have more than {limit} bytes together",
                hint="send fewer large messages at once",
            )
        )

    def leave_shared(self) -> None:
        if self._reader is not None:
            self._reader.leave_shared()

    def end(self) -> None:
        if self.ended:
            return
        if self._reader is not None and not self._reader.is_between:
            self.fail(GrpcError(Status.INTERNAL, "the stream ended in the middle of a message"))
            return
        self.on_end()

    def cancel(self) -> None:
        if not self.ended:
            # A client whose deadline has passed cancels its call; often that arrives before it has passed here, too.
            has_expired = self._tick and self.front_end.deadlines.is_near(self._tick)
            self._end(Status.CANCELLED)
            self.on_cancel(CancelCause.DEADLINE if has_expired else CancelCause.CLIENT)

    def moved(self) -> None:
        """Nothing waits for it."""

    def drained(self) -> None:
        """Nothing waits for it."""

    def has_expired(self) -> bool:
        """End the call if the caller's deadline has passed, although its tick is still to come. Returns whether it has.

        Asked before a request begins, and before an answer says that all went well: so neither happens too late.
        """
        if not self._due or monotonic() < self._due:
            return False
        self.expire()
        return True

    def expire(self) -> None:
        """The caller's deadline has passed."""
        if not self.ended:
            self.fail(GrpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _receive(self, message: Message) -> None:
        if self.ended:
            return
        if not message.compressed:
            self.on_message(message.content)
            return
        self.on_compressed(message.content)

    def on_compressed(self, content: Buffer) -> None:
        """The next message, compressed."""
        if MOST_INFLATED * len(content) <= LARGE:
            self.on_message(self.inflate(content))
        else:
            self.busy += 1
            self.front_end.spawn(self._inflate_elsewhere, content)

    def inflate(self, content: Buffer) -> bytes:
        """Raises GrpcError."""
        return inflate(content, self.head.encoding, self.front_end.options.max_message_size)

    def _inflate_elsewhere(self, content: Buffer) -> None:
        try:
            if not self.ended:
                message = self.front_end.bridge.run(self.inflate, content)
                if not self.ended:
                    self.on_message(message)
        except Exception as error:  # the request boundary: whatever goes wrong becomes the status of the call
            self.fail(error)
        finally:
            self.free()

    # --- the way back

    @property
    def unsent(self) -> int:
        """Bytes of answers that wait for the client."""
        return self._stream.unsent if self._stream is not None else 0

    def pause(self) -> None:
        """Receive no more than the client may already send."""
        if self._stream is not None:
            self._stream.pause()

    def resume(self) -> None:
        if self._stream is not None:
            self._stream.resume()

    def send(self, parts: Sequence[Buffer], size: int, flag: bytes = PLAIN) -> None:
        """Send one message of `size` bytes. Does nothing after the end."""
        if self.ended or self._stream is None:
            return
        headers = None if self.started else self.head.response_headers
        self.started = True
        self._stream.send(headers, (flag + size.to_bytes(4, "big"), *parts), size + PREFIX)

    def reply(self, parts: Sequence[Buffer], size: int, flag: bytes = PLAIN) -> None:
        """Send the one message of a call, and its end. Does nothing after the end."""
        if self.ended or self._stream is None or (self._due and self.has_expired()):
            return
        self.started = True
        self._stream.send(self.head.response_headers, (flag + size.to_bytes(4, "big"), *parts), size + PREFIX, OK)
        self._end(_STATUS_OK)

    def deflate(self, parts: Sequence[Buffer], size: int) -> tuple[Sequence[Buffer], int, bytes]:
        """A message and its flag for `send` and `reply`, compressed unless that makes it longer. Any thread."""
        level = self.front_end.compression
        assert level is not None
        content = deflate(parts, self.head.response_encoding, level.effort)
        return ((content,), len(content), COMPRESSED) if len(content) < size else (parts, size, PLAIN)

    def finish(self) -> None:
        """The end of a call that went well."""
        if self.ended or self._stream is None or (self._due and self.has_expired()):
            return
        self._stream.send(None, (), 0, OK if self.started else ONLY_OK)
        self._end(Status.OK)

    def fail(self, error: Exception, request_id: str = "") -> None:
        """End the call with the status for `error`, and cancel what runs for it. `request_id` is for the log."""
        if self.ended or self._stream is None:
            return
        status = status_of(error)
        log_error(error, status, self.head.path, request_id)
        self._stream.send(None, (), 0, error_trailers(error, self.front_end.options.error_hints, only=not self.started))
        self._end(status)
        # The traceback refers to the frames that the error passed, and one of them to whatever has the error: this
        # cycle would keep the message until the garbage collector runs.
        error.__traceback__ = None
        self.on_cancel(CancelCause.DEADLINE if status is Status.DEADLINE_EXCEEDED else CancelCause.CLIENT)

    def free(self) -> None:
        """One of those that `busy` counts has ended."""
        self.busy -= 1
        if self.ended and not self.busy:
            self._release()

    def _end(self, status: Status) -> None:
        self.ended = True
        if self._reader is not None:
            self._reader = None
            self.front_end.unfinished.remove(self)
        if self._tick:
            self.front_end.deadlines.remove(self._tick, self)
        self.front_end.counts.count(self.head.method, status)
        if self._began_ns:
            self._log_access(status)
        if not self.busy:
            self._release()

    def _log_access(self, status: Status) -> None:
        head, stream = self.head, self._stream
        is_probe = head.method is not None and head.method.group == "health"
        if SWITCHES.probes or not is_probe:
            assert isinstance(stream, CountedStream)
            log_ended(self._client, head.path, status, self._began_ns, stream, self.response)
        self.response = None

    def _release(self) -> None:
        # The stream refers to this call as its receiver.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.release()


class UnaryCall(Call):
    """A subclass has `serve(message)`, which is called once, when the client has sent everything."""

    __slots__ = ("_has_ended", "_message")

    def __init__(self, front_end: GrpcFrontEnd, stream: Stream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._message: Buffer | None = None
        self._has_ended = False

    def serve(self, message: Buffer) -> None:
        raise NotImplementedError

    def on_message(self, message: Buffer) -> None:
        if self._message is not None:
            self.fail(GrpcError(Status.UNIMPLEMENTED, f"{self.head.path} takes one message, and got more"))
            return
        self._message = message
        if self._has_ended:  # it had to be inflated first
            self._serve()

    def on_end(self) -> None:
        self._has_ended = True
        if self._message is not None:
            self._serve()
        elif not self.busy:
            self.fail(GrpcError(Status.UNIMPLEMENTED, f"{self.head.path} takes one message, and got none"))

    def _serve(self) -> None:
        message, self._message = self._message, b""
        assert message is not None
        if self._due and self.has_expired():
            return
        self.serve(message)


class RefusedCall(Call):
    """What the client sends is not looked at.

    A call ends as soon as it begins. A client that does not speak gRPC is answered when it has sent everything: not
    every client of HTTP takes an answer before.
    """

    __slots__ = ()

    def refuse(self) -> None:
        if self.head.error is not None:
            self.fail(self.head.error)

    def take(self, content: Buffer) -> None:
        """It is thrown away."""

    def end(self) -> None:
        if not self.ended and self._stream is not None:
            headers = http_refusal(self.head.http_status)
            self._stream.send(headers, (NOT_GRPC,), len(NOT_GRPC), NOT_GRPC_TRAILERS)
            self._end(Status.UNKNOWN)

    def on_message(self, message: Buffer) -> None:
        """None is read."""

    def on_end(self) -> None:
        """The end is not told."""
