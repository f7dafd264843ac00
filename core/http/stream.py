"""Streams: requests and answers on one WebSocket, in both directions at once.

The worker has the socket and its frames (app/worker/web_socket.py). It gives each message to a ModelStream, and takes
the messages for the client from it. Models that answer once are answered for in the order of the requests, decoupled
ones as they answer.
Source: docs/spec/streams.md.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl, urlsplit

import orjson

from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import ErrorCode, InvalidRequest, SequenceNotFound
from trident.core.frontend.answered_request import AnsweredRequest
from trident.core.frontend.dataplane import ResponsePlan, find_model
from trident.core.frontend.request import HTTP, NOT_NOTED, client_trace, end_trace
from trident.core.http.body import parse_json
from trident.core.http.dataplane import TRACEPARENT, TRACESTATE, complete, decode_v2, encode_v2
from trident.core.http.errors import REQUEST_ID_KEY, HttpError, error_document, log_error
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.reply import Environ, Headers, Reply
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Origin
from trident.core.inference.tensors import BYTES, Buffer

if TYPE_CHECKING:
    from trident.core.frontend.gevent_bridge import GeventBridge

# Our worker passes a function with a request that asks for a WebSocket: it takes the ModelStream that serves the socket
# and returns the headers of the answer. It raises InvalidRequest for a handshake that is not one.
UPGRADE_KEY: Final = "trident.upgrade"
FINAL: Final = "triton_final_response"

# A client that has so many requests unanswered, or whose requests or untaken answers are so large together, is read no
# further.
MOST_REQUESTS: Final = 1024
MOST_HELD: Final = 64 << 20
MOST_UNSENT: Final = 1 << 20
_LARGE: Final = 65536
# The bytes before the JSON of a binary message: its length, little-endian, as the lengths of strings in tensors.
_LENGTH: Final = 4

Find = Callable[[], tuple[ServedModel, int]]


class UpgradeRequired(HttpError):
    status = 426

    def __init__(self) -> None:
        super().__init__("this address is that of a WebSocket", hint="begin the address with ws:// or wss://")


class OriginRefused(HttpError):
    code = ErrorCode.UNAVAILABLE
    status = 403

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"a page of another site may not open a stream: {origin[:200]}",
            hint="the header Origin must name the host that the header Host names, or be left out",
        )


@dataclass(frozen=True, slots=True)
class Forms:
    """True for text messages, binary messages and answers that are chunks: the mere content of the model's one input or
    output. Otherwise they are messages of the v2 protocol."""

    text: bool = False
    binary: bool = False
    answers: bool = False


def stream(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Open a stream to `model`; `version` is text, empty for the latest. Raises ServerError."""
    return open_socket(front_end, environ, partial(find_model, front_end.engine.model, model, version), Forms())


def open_socket(front_end: HttpFrontEnd, environ: Environ, find: Find, forms: Forms) -> Reply:
    """Open a stream to the model that `find` finds for each message. `forms` are those without a query.

    Raises ServerError.
    """
    accept: Callable[[ModelStream], Headers] | None = environ.get(UPGRADE_KEY)
    if accept is None:
        raise UpgradeRequired
    # A browser lets every page open WebSockets to any server, and read what comes.
    origin = environ.get("HTTP_ORIGIN")
    if origin is not None and urlsplit(origin).netloc.lower() != environ.get("HTTP_HOST", "").lower():
        raise OriginRefused(origin)
    query = environ["QUERY_STRING"]
    given = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in forms.__slots__ or value not in ("v2", "chunk"):
            raise InvalidRequest(
                f"a stream has no option '{name[:100]}={value[:100]}'",
                hint="the options are text, binary and answers, and each is v2 or chunk",
            )
        given[name] = value == "chunk"
    forms = replace(forms, **given)
    find()
    return Reply(101, accept(ModelStream(front_end, environ, find, forms)), [])


class StreamMessage(NamedTuple):
    """A message for the client. `asked` is the request that it answers, of which it is the last if `is_last`."""

    content: bytes
    is_text: bool
    asked: _Asked
    size: int
    is_last: bool


class _Sequence:
    """A sequence of requests that name none. `first` is its first request, with its model; `has_begun`: that was
    accepted."""

    __slots__ = ("first", "has_begun", "id")

    def __init__(self, id: int | str, model: ServedModel, first: InferenceRequest) -> None:
        self.id = id
        self.first = model, first
        self.has_begun = False


class _Joined(NamedTuple):
    """A request of a sequence of the stream, whether it begins it, and whether it ends it. One that does both is none:
    nothing follows from what becomes of it."""

    sequence: _Sequence
    begins: bool
    ends: bool


class _Asked(AnsweredRequest):
    """A request of the stream. `answer` is its one answer, if it has one: a response, or the error that refused it.
    `joined` is None after its first response.
    """

    __slots__ = ("_stream", "answer", "id", "joined", "plan", "spec")

    def __init__(self, stream: ModelStream, identifier: str, size: int, read_ns: int) -> None:
        super().__init__(size, False)
        self._stream = stream
        self.id = identifier
        self.read_ns = read_ns
        self.spec: ModelSpec | None = None
        self.plan = ResponsePlan()
        self.answer: InferenceResponse | Exception | None = None
        self.joined: _Joined | None = None

    def deliver(self, response: InferenceResponse, answer: InferenceResponse | None) -> None:
        if answer is not None:
            self._stream.answer(self, answer)
        joined, self.joined = self.joined, None
        if joined is not None:
            self._stream.decide(joined, response)


class ModelStream:
    """The requests of one WebSocket and their answers. Hub thread only.

    `receive` and `take` may wait, each in a greenlet of its own. `changed` is called when there is a message to take,
    or room for more requests; the worker sets it.
    """

    def __init__(self, front_end: HttpFrontEnd, environ: Environ, find: Find, forms: Forms) -> None:
        self.largest = front_end.options.max_input_size
        self.changed: Callable[[], None] = _nothing
        self._front_end = front_end
        self._bridge = cast("GeventBridge", front_end.bridge)  # that of the worker
        self._environ = environ
        self._find = find
        self._forms = forms
        self._in_flight: dict[_Asked, None] = {}
        # Those whose answers are sent in order, the oldest first.
        self._ordered: deque[_Asked] = deque()
        self._outbox: deque[tuple[_Asked, InferenceResponse | Exception]] = deque()
        self._held = 0
        self._unsent = 0
        self._has_ended = False
        # The sequence of requests that name none, None while none is open, and the one that has begun last.
        self._sequence: _Sequence | None = None
        self._latest: _Sequence | None = None
        # Its requests that came before it was known whether the first one was accepted.
        self._waiting: deque[tuple[_Asked, ServedModel, InferenceRequest]] = deque()
        self._is_going_on = False

    @property
    def is_busy(self) -> bool:
        return bool(self._in_flight)

    @property
    def is_full(self) -> bool:
        """True while too many requests are in flight to read more."""
        return len(self._in_flight) >= MOST_REQUESTS or self._held > MOST_HELD or self._unsent > MOST_UNSENT

    # --- requests

    def receive(self, message: Buffer, *, is_text: bool) -> None:
        """Begin the request in a message; what is wrong with it becomes its answer. Text is valid UTF-8."""
        read_ns = monotonic_ns()
        front_end, environ = self._front_end, self._environ
        request: InferenceRequest | None = None
        try:
            model, version = self._find()
            request, plan = self._decode(message, is_text, model.spec, version)
            complete(front_end, environ, request)
            asked = _Asked(self, request.id, len(message), read_ns)
            asked.spec, asked.plan, asked.is_streamed = model.spec, plan, model.spec.decoupled
        except Exception as error:  # the request boundary: whatever goes wrong with a request becomes its answer here
            # Not the id in `environ`, which is that of whatever the stream answered while this waited.
            asked = _Asked(self, self._id_in(message, is_text) if request is None else request.id, 0, read_ns)
            self._enter(asked)
            asked.is_over = True
            self.answer(asked, error)
            return
        if model.spec.counts_arrival:
            request.arrived_ns = read_ns
        if front_end.trace_gate.reads_context:
            request.trace = client_trace(environ.get(TRACEPARENT), environ.get(TRACESTATE))
        self._enter(asked)
        sequence = model.spec.sequence
        if sequence is None or sequence.is_iterative or request.correlation_id:
            self._submit(asked, model, request)
        else:
            self._waiting.append((asked, model, request))
            self._go_on()

    def _submit(self, asked: _Asked, model: ServedModel, request: InferenceRequest) -> None:
        is_slow = asked.size >= _LARGE and request.may_be_passed
        asked.begin(self._bridge.submit(model, request, asked.respond, streamed=asked.is_streamed, is_slow=is_slow))

    def _decode(
        self, message: Buffer, is_text: bool, spec: ModelSpec, version: int
    ) -> tuple[InferenceRequest, ResponsePlan]:
        front_end, environ = self._front_end, self._environ
        if self._forms.text if is_text else self._forms.binary:
            if is_text and any(expected.datatype is not BYTES for expected in spec.inputs.values()):
                raise InvalidRequest(
                    f"a text message has no content for '{spec.name}', whose input has no strings",
                    hint="send the elements of the input as a binary message",
                )
            return decode_v2(front_end, environ, message, 0, version, spec)[0], ResponsePlan()
        if is_text:
            return decode_v2(front_end, environ, message, None, version, spec)
        length = int.from_bytes(message[:_LENGTH], "little")
        if len(message) < _LENGTH or not 0 <= length <= len(message) - _LENGTH:
            raise InvalidRequest(
                f"a binary message of {len(message)} bytes does not begin with the length of its JSON",
                hint="the first 4 bytes are that length, little-endian; with the option binary=chunk there are none",
            )
        return decode_v2(front_end, environ, memoryview(message)[_LENGTH:], length, version, spec)

    def _id_in(self, message: Buffer, is_text: bool) -> str:
        """The id of a message that was refused, if its text has one."""
        if (self._forms.text if is_text else self._forms.binary) or len(message) > MOST_UNSENT:
            return ""
        if not is_text:
            message = memoryview(message)[_LENGTH : _LENGTH + int.from_bytes(message[:_LENGTH], "little")]
        try:
            found = parse_json(message)["id"]
        except (InvalidRequest, KeyError, TypeError):
            return ""
        return found if isinstance(found, str) else ""

    # --- the sequence of requests that name none

    def _go_on(self) -> None:
        """Submit the requests that wait, up to one that begins a sequence."""
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._waiting and (self._sequence is None or self._sequence.has_begun):
                asked, model, request = self._waiting.popleft()
                self._join(asked, model, request)
                self._submit(asked, model, request)
        finally:
            self._is_going_on = False

    def _join(self, asked: _Asked, model: ServedModel, request: InferenceRequest) -> None:
        """Make the request one of the open sequence, or the first of another."""
        sequence, ends = self._sequence, request.sequence_end
        begins = sequence is None
        if sequence is None:
            assert model.spec.sequence is not None
            control = model.spec.sequence.correlation_id
            if control is not None and control.datatype is BYTES:
                new_id: int | str = secrets.token_hex(16)
            else:  # of the datatype that the model wants, never 0
                bits = 63 if control is None else control.datatype.size * 8 - 1
                new_id = secrets.randbelow(2**bits - 1) + 1
            sequence = self._latest = _Sequence(new_id, model, request)
            request.sequence_start = True
        request.correlation_id = sequence.id
        self._sequence = None if ends else sequence
        if not (begins and ends):
            asked.joined = _Joined(sequence, begins, ends)

    def decide(self, joined: _Joined, response: InferenceResponse) -> None:
        """Note whether a request counts for its sequence: one that was refused does not. On its first response."""
        sequence = joined.sequence
        origin = None if response.error is None else response.origin
        if isinstance(response.error, SequenceNotFound):
            if self._sequence is sequence:
                self._sequence = None
        elif joined.begins:
            if origin is None or origin is Origin.FAILED:
                sequence.has_begun = True
            else:
                self._sequence = None
                if origin is Origin.REJECTED:
                    self._free_slot(sequence)
        elif joined.ends and origin is Origin.REFUSED:
            if self._latest is sequence and not self._has_ended:
                self._sequence = sequence
            else:
                self._free_slot(sequence)
        self._go_on()

    def _free_slot(self, sequence: _Sequence) -> None:
        """End a sequence without its END. A request that is cancelled before it runs does that; otherwise the sequence
        would have its slot until it was idle for long enough."""
        model, first = sequence.first  # a later one may be what was refused
        request = first.with_inputs(first.inputs, model_version=first.model_version, id="")
        request.sequence_start, request.sequence_end = False, True
        self._bridge.submit(model, request, lambda response: None).cancel()

    def _enter(self, asked: _Asked) -> None:
        self._in_flight[asked] = None
        self._held += asked.size
        if not asked.is_streamed:
            self._ordered.append(asked)

    # --- answers

    def answer(self, asked: _Asked, answer: InferenceResponse | Exception) -> None:
        """An answer to a request, the last one if `asked.is_over`. On the hub."""
        if self._has_ended:
            self._forget(asked, asked.is_over, 0)
            return
        if asked.is_streamed:
            self._outbox.append((asked, answer))
        else:
            asked.answer = answer
            if isinstance(answer, InferenceResponse):
                self._unsent += answer.nbytes
            ordered = self._ordered
            while ordered and (ready := ordered[0].answer) is not None:
                self._outbox.append((ordered.popleft(), ready))
        self.changed()

    def take(self) -> StreamMessage | None:
        """Return the next message for the client, or None. Call `sent` once it has been sent."""
        while self._outbox:
            asked, answer = self._outbox.popleft()
            is_last = not isinstance(answer, InferenceResponse) or not asked.is_streamed or answer.final
            size = 0 if asked.is_streamed or not isinstance(answer, InferenceResponse) else answer.nbytes
            try:
                content, is_text = self._encoded(asked, answer, is_last)
            except Exception as error:  # the request boundary, of responses
                content, is_text = self._error_text(asked, error, is_last), True
            message = StreamMessage(content, is_text, asked, size, is_last)
            if content or not self._forms.answers:
                return message
            self.sent(message)
        return None

    def sent(self, message: StreamMessage, began_ns: int = 0) -> None:
        """Note that the message was sent; sending began at `began_ns` of the monotonic clock."""
        self._unsent -= message.size
        if message.asked.is_streamed:
            message.asked.take(1)
        self._forget(message.asked, message.is_last, began_ns)
        self.changed()

    def _forget(self, asked: _Asked, is_last: bool, began_ns: int) -> None:
        if not is_last:
            return
        if asked in self._in_flight:
            del self._in_flight[asked]
            self._held -= asked.size
        if asked.trace:
            sent = (began_ns, monotonic_ns()) if began_ns else NOT_NOTED
            end_trace(self._front_end.engine, asked.trace, HTTP, (asked.read_ns, asked.read_ns), sent)

    def _encoded(self, asked: _Asked, answer: InferenceResponse | Exception, is_last: bool) -> tuple[bytes, bool]:
        """The content of the message, and whether it is text; no content for a chunk that there is not."""
        if not isinstance(answer, InferenceResponse):
            raise answer
        if answer.error is not None:
            raise answer.error
        spec = asked.spec
        assert spec is not None
        if self._forms.answers:
            return _output_chunk(answer)
        response = InferenceResponse(
            answer.model_name,
            answer.model_version,
            answer.outputs,
            id=answer.id,
            parameters={**(answer.parameters or {}), FINAL: is_last},
        )
        parts, json_length = encode_v2(self._front_end, response, asked.plan, spec)
        if json_length is None:
            content = b"".join(parts)
            if not _is_utf_8(content):
                raise InvalidRequest(
                    f"an answer of '{answer.model_name}' has strings that are not UTF-8, so it is not a text message",
                    hint="ask for the outputs as binary_data",
                )
            return content, True
        return b"".join([json_length.to_bytes(_LENGTH, "little"), *parts]), False

    def _error_text(self, asked: _Asked, error: Exception, is_last: bool) -> bytes:
        environ, front_end = self._environ, self._front_end
        if asked.id:
            environ[REQUEST_ID_KEY] = asked.id
        else:
            environ.pop(REQUEST_ID_KEY, None)
        log_error(error, front_end.status_of(error), environ)
        # No cycle: the traceback refers to frames that refer to this stream.
        error.__traceback__ = None
        document: dict[str, Any] = {"id": asked.id} if asked.id else {}
        document |= error_document(error, front_end.options.error_hints)
        document["parameters"] = {FINAL: is_last}
        return orjson.dumps(document)

    # --- the end

    def end(self) -> None:
        """Cancel the requests and free the slot of the sequence: the client reads no more answers."""
        self._has_ended = True
        self.changed = _nothing
        self._outbox.clear()
        self._ordered.clear()
        for asked, _, _ in self._waiting:
            del self._in_flight[asked]
        self._waiting.clear()
        for asked in list(self._in_flight):
            if asked.pending is not None:
                asked.pending.cancel()
        sequence, self._sequence = self._sequence, None
        if sequence is not None:
            self._free_slot(sequence)


def _nothing() -> None:
    """Does nothing: no caller waits."""


def _output_chunk(response: InferenceResponse) -> tuple[bytes, bool]:
    """The mere content of the one output; of strings, their text without lengths."""
    outputs = list(response.outputs)
    if not outputs:
        return b"", False
    if len(outputs) > 1:
        raise InvalidRequest(
            f"an answer of '{response.model_name}' has {len(outputs)} outputs, so it is not a chunk",
            hint="leave out the option answers=chunk",
        )
    output = outputs[0]
    if output.datatype != BYTES.name:
        return bytes(output.content()), False
    content = b"".join(bytes(element) for element in output.array.reshape(-1))
    return content, _is_utf_8(content)


def _is_utf_8(content: bytes) -> bool:
    """True if the content may be a text message: a client closes the stream at any other."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
