"""One call: the messages of a client on a stream, and its answers.

    Call
    ├── UnaryCall           one request
    │   ├── RpcCall           an RPC that a function serves
    │   ├── InferCall         ModelInfer
    │   └── WatchCall         grpc.health.v1 Watch
    ├── StreamInferCall     ModelStreamInfer
    ├── ReflectionCall      server reflection
    └── RefusedCall         a call that was refused by its head

Source: gRPC's `PROTOCOL-HTTP2.md`, core/grpc/transport.py; the access log: docs/http.md, docs/grpc.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, monotonic_ns, perf_counter_ns
from typing import Final

from trident.core.frontend.compression import deflate
from trident.core.frontend.request import client_trace
from trident.core.grpc.front_end import GrpcFrontEnd
from trident.core.grpc.headers import (
    NOT_GRPC,
    NOT_GRPC_TRAILERS,
    OK,
    ONLY_OK,
    RequestHead,
    error_trailers,
    http_refusal,
)
from trident.core.grpc.messages import PREFIX, Message, MessageReader, inflate_message, read_prefix
from trident.core.grpc.status import GrpcError, Status, log_error, status_of
from trident.core.grpc.transport import CallStream, Receiver
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer
from trident.core.observability.access_log import log_access
from trident.core.observability.switches import SWITCHES

# Deflate makes a message at most this much smaller.
MOST_INFLATED: Final = 1032
# 64 KB inflate and deflate in less than a millisecond: what is larger does so on another thread.
LARGE: Final = 65536
# The size of a request for health in bytes: it needs no token.
_MOST_OF_HEALTH: Final = 65536
PLAIN: Final = b"\0"
COMPRESSED: Final = b"\1"
_STATUS_OK: Final = Status.OK


class Call(Receiver):
    """Receives the messages of a stream and sends the answers. All of it runs on the hub's thread.

    | state    | `ended` | `busy` | `_stream` |                                                                  |
    |----------|---------|--------|-----------|------------------------------------------------------------------|
    | open     | false   | any    | set       | receives and answers; `started` once a header section was sent   |
    | ended    | true    | > 0    | set       | the client has its status, or has gone; something still runs     |
    | released | true    | 0      | None      | the client may open another stream                               |

    A subclass has these:

    * `on_message(message)`: the next message of the client.
    * `on_end()`: the client has sent all its messages.
    * `on_cancel(cause)`: answers are of no use any more; cancel what still runs for this call. Called once.
    * `moved()` and `drained()`: as in Receiver.

    `busy` counts what still runs for the call. `response` is what the access log tells of an inference, `request_id`
    what the log tells of a failure. `opened_ns` is when the call began, in nanoseconds of the monotonic clock, 0 unless
    it may be traced. `trailers` end a call that is answered with one message, and goes well.
    """

    __slots__ = (
        "_began_ns",
        "_bytes_in",
        "_bytes_out",
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
        "request_id",
        "response",
        "started",
        "trailers",
    )

    def __init__(self, front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> None:
        self.front_end = front_end
        self.head = head
        self._stream: CallStream | None = stream
        self._reader: MessageReader | None = None
        self.started = False
        self.trailers = OK
        self.ended = False
        self.busy = 0
        self._tick = 0
        # Seconds of the monotonic clock, 0 without a deadline.
        self._due = 0.0
        self.request_id = ""
        self.response: InferenceResponse | None = None
        # Bytes of messages with their prefixes, for the access log; `_began_ns` is 0 for a call that it leaves out.
        self._bytes_in = 0
        self._bytes_out = 0
        self._began_ns = 0
        self._client = ""
        if SWITCHES.access:
            self._began_ns = perf_counter_ns()
            self._client = stream.peer
        self.opened_ns = monotonic_ns() if front_end.trace_gate.is_open else 0
        if head.timeout_s is not None:
            self._due = monotonic() + head.timeout_s
            self._tick = front_end.deadlines.add(head.timeout_s, self)

    def note_client_trace(self, request: InferenceRequest) -> None:
        if self.front_end.trace_gate.reads_context:
            metadata = self.head.metadata
            request.trace = client_trace(metadata.text("traceparent"), metadata.text("tracestate"))

    # --- hooks of subclasses

    def on_message(self, message: Buffer) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        raise NotImplementedError

    def on_cancel(self, cause: CancelCause) -> None:
        """Do nothing: there are no requests to cancel."""

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
        self._bytes_in += size
        if self._reader is None or self.ended:
            return
        message = self._reader.filled(size)
        if message is None:
            self.front_end.unfinished.grew(self)
        else:
            self.front_end.unfinished.remove(self)
            self._receive(message)

    def take(self, content: Buffer) -> None:
        size = len(content)
        self._bytes_in += size
        if self.ended:
            return
        reader = self._reader
        if reader is None:
            size -= PREFIX
            if 0 <= size <= self.front_end.options.max_message_size and read_prefix(content) == (0, size):
                self.on_message(bytes(content[PREFIX:]))
                return
            front_end = self.front_end
            reader = self._reader = MessageReader(self._limit, front_end.allocate, front_end.tensor_offset)
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
    def _limit(self) -> int:
        limit, method = self.front_end.options.max_message_size, self.head.method
        return min(limit, _MOST_OF_HEALTH) if method is not None and method.group == "health" else limit

    @property
    def received(self) -> int:
        """Bytes of an unfinished message that have arrived."""
        return self._reader.received if self._reader is not None else 0

    @property
    def is_held_up(self) -> bool:
        """True while the server keeps the client from sending more."""
        return False

    def stall(self) -> None:
        """Fail the call, because a message stayed unfinished for too long."""
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
        """Do nothing: no task waits for this."""

    def drained(self) -> None:
        """Do nothing: no task waits for this."""

    def has_expired(self) -> bool:
        """End the call if the caller's deadline has passed, although its tick is still to come. Returns whether it has.

        Asked before a request begins, and before an answer says that all went well: so neither happens too late.
        """
        if not self._due or monotonic() < self._due:
            return False
        self.expire()
        return True

    def expire(self) -> None:
        if not self.ended:
            self.fail(GrpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _receive(self, message: Message) -> None:
        if not self.ended:
            if message.compressed:
                self.on_compressed(message.content)
            else:
                self.on_message(message.content)

    def on_compressed(self, content: Buffer) -> None:
        if MOST_INFLATED * len(content) <= LARGE:
            self.on_message(self.inflate(content))
        else:
            self.spawn(self._inflate_elsewhere, content)

    def inflate(self, content: Buffer) -> bytes:
        """Raises GrpcError."""
        return inflate_message(content, self.head.encoding, self._limit)

    def _inflate_elsewhere(self, content: Buffer) -> None:
        message = self.front_end.bridge.run(self.inflate, content)
        if not self.ended:
            self.on_message(message)

    # --- greenlets of the call

    def spawn(self, function: Callable[..., None], *args: object) -> None:
        """Call `function` in a greenlet, unless the call ends before. An error that it raises ends the call."""
        self.busy += 1
        self.front_end.spawn(self.run, function, *args)

    def run(self, function: Callable[..., None], *args: object) -> None:
        """As `spawn`, here, for one that `busy` counts already."""
        try:
            if not self.ended:
                function(*args)
        except Exception as error:  # the request boundary: whatever goes wrong becomes the status of the call
            self.fail(error)
        finally:
            self.free()

    def free(self) -> None:
        """Note the end of one of the tasks that `busy` counts."""
        self.busy -= 1
        if self.ended and not self.busy:
            self._release()

    # --- sending

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
        self._bytes_out += size + PREFIX
        self._stream.send(headers, (flag + size.to_bytes(4, "big"), *parts), size + PREFIX)

    def reply(self, parts: Sequence[Buffer], size: int, flag: bytes = PLAIN) -> None:
        """Send the one message of a call, and its end. Does nothing after the end."""
        if self.ended or self._stream is None or (self._due and self.has_expired()):
            return
        self.started = True
        self._bytes_out += size + PREFIX
        self._stream.send(
            self.head.response_headers, (flag + size.to_bytes(4, "big"), *parts), size + PREFIX, self.trailers
        )
        self._end(_STATUS_OK)

    def deflate(self, parts: Sequence[Buffer], size: int) -> tuple[Sequence[Buffer], int, bytes]:
        """A message and its flag for `send` and `reply`, compressed unless that makes it longer. Any thread."""
        level = self.front_end.compression
        assert level is not None
        content = deflate(parts, self.head.response_encoding.decode(), level.effort)
        return ((content,), len(content), COMPRESSED) if len(content) < size else (parts, size, PLAIN)

    def finish(self) -> None:
        if self.ended or self._stream is None or (self._due and self.has_expired()):
            return
        self._stream.send(None, (), 0, OK if self.started else ONLY_OK)
        self._end(Status.OK)

    def fail(self, error: Exception) -> None:
        """End the call with the status for `error`, and cancel its requests."""
        if self.ended or self._stream is None:
            return
        status = status_of(error)
        log_error(error, status, self.head.path, self.request_id)
        self.front_end.count_error(self.head.method, error, status)
        self._stream.send(None, (), 0, error_trailers(error, self.front_end.options.error_hints, only=not self.started))
        self._end(status)
        # The traceback refers to the frames that the error passed, and one of them to whatever has the error: this
        # cycle would keep the message until the garbage collector runs.
        error.__traceback__ = None
        self.on_cancel(CancelCause.DEADLINE if status is Status.DEADLINE_EXCEEDED else CancelCause.CLIENT)

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
        method, response = self.head.method, self.response
        self.response = None
        if method is not None and method.group == "health" and not SWITCHES.probes:
            return
        log_access(
            self._client.rpartition(":")[0] or self._client,  # without the port, as HTTP's lines
            "gRPC",
            self.head.path,
            status.name,
            self._began_ns,
            {"received_bytes": self._bytes_in, "sent_bytes": self._bytes_out},
            request_id=response.id if response is not None else "",
            model=response.model_name if response is not None else "",
            version=response.model_version if response is not None else 0,
            times=response.times if response is not None else None,
        )

    def _release(self) -> None:
        # The stream refers to this call as its receiver.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.release()


class UnaryCall(Call):
    """A call with one message. Subclasses have `serve(message)`, called once after the client has sent everything."""

    __slots__ = ("_has_ended", "_message")

    def __init__(self, front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> None:
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


Rpc = Callable[[GrpcFrontEnd, Buffer], bytes]


class RpcCall(UnaryCall):
    """A call that `rpc` serves: in a greenlet, after protobuf was loaded, if it `waits` or its message has fields."""

    __slots__ = ("_rpc", "_waits")

    def __init__(self, rpc: Rpc, waits: bool, front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._rpc = rpc
        self._waits = waits

    def serve(self, message: Buffer) -> None:
        if self._waits or len(message):
            self.spawn(self._answer, message)
        else:
            self.busy += 1
            self.run(self._answer, message)

    def _answer(self, message: Buffer) -> None:
        if self._waits or len(message):
            self.front_end.load()
        if not self.ended:
            answer = self._rpc(self.front_end, message)
            self.reply((answer,), len(answer))


class RefusedCall(Call):
    """Ignores further messages of the client.

    A call ends as soon as it begins. A client that does not speak gRPC is answered when it has sent everything: not
    every client of HTTP takes an answer before.
    """

    __slots__ = ()

    def refuse(self) -> None:
        if self.head.error is not None:
            self.fail(self.head.error)

    def take(self, content: Buffer) -> None:
        self._bytes_in += len(content)

    def end(self) -> None:
        if not self.ended and self._stream is not None:
            headers = http_refusal(self.head.http_status)
            self._bytes_out += len(NOT_GRPC)
            self._stream.send(headers, (NOT_GRPC,), len(NOT_GRPC), NOT_GRPC_TRAILERS)
            self._end(Status.UNKNOWN)

    def on_message(self, message: Buffer) -> None:
        """Ignore the message."""

    def on_end(self) -> None:
        """The end is not told."""
