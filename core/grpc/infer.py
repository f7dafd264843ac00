"""ModelInfer, one request and one response with no greenlet between them, and ModelStreamInfer, requests of any models
on one stream; and the responses to both.

Source: docs/spec/grpc.md sections 2 to 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import Struct
from time import monotonic_ns
from typing import Final

from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, InvalidRequest, ServerError
from trident.core.frontend.answered_request import AnsweredRequest
from trident.core.frontend.bridge import SingleResponse
from trident.core.frontend.classification import classified
from trident.core.frontend.dataplane import ResponsePlan
from trident.core.frontend.request import GRPC, NOT_NOTED, end_trace
from trident.core.grpc.call import LARGE, MOST_INFLATED, PLAIN, Call, UnaryCall
from trident.core.grpc.front_end import GrpcFrontEnd, WouldBlock, stopping
from trident.core.grpc.headers import RequestHead, ok_trailers
from trident.core.grpc.messages import (
    IDENTITY,
    PREFIX,
    Message,
    length_field,
    length_prefix,
    packed_integers,
    string_field,
    varint,
)
from trident.core.grpc.request import DecodedRequest, request_id
from trident.core.grpc.status import GrpcError, MalformedMessage, Status, log_error, message_of, status_of
from trident.core.grpc.transport import CallStream
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import Parameter
from trident.core.inference.response import InferenceResponse, Origin, Outputs, PackedOutputs
from trident.core.inference.tensors import Buffer, Shape, TensorLayout, layout_of
from trident.core.memo import Memo
from trident.core.observability.switches import SWITCHES


class InferCall(UnaryCall):
    __slots__ = ("_answered_ns", "_decoded", "_is_slow", "_pending", "_read_ns", "_responses", "_trace")

    def __init__(self, front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._decoded: DecodedRequest | None = None
        # Many strings, which are packed and unpacked on other threads.
        self._is_slow = False
        self._pending: PendingRequest | None = None
        self._responses: SingleResponse | None = None
        # The number of the request's trace, 0 without one, and when the request had arrived and was answered.
        self._trace = 0
        self._read_ns = 0
        self._answered_ns = 0

    def serve(self, message: Buffer) -> None:
        if self.opened_ns:
            self._read_ns = monotonic_ns()
        try:
            self._submit(self.front_end.decode(message, self.head.forwarded), len(message))
        except WouldBlock:
            self.spawn(self._decode_waiting, message)
        except Exception as error:  # the request boundary: whatever goes wrong with a request becomes a status here
            self.fail(error)

    def _decode_waiting(self, message: Buffer) -> None:
        decoded = self.front_end.decode_waiting(message, self.head.forwarded)
        if not self.ended and not self.has_expired():
            self._submit(decoded, len(message))

    def _submit(self, decoded: DecodedRequest, size: int) -> None:
        self._decoded = decoded
        self.busy += 1
        request = decoded.request
        self.note_client_trace(request)
        self._is_slow = size >= LARGE and request.may_be_passed
        pending = self.front_end.bridge.submit(decoded.model, request, self._respond, is_slow=self._is_slow)
        if self._decoded is not None:  # it has not been answered yet
            self._pending = pending

    def _respond(self, response: InferenceResponse) -> None:
        if not response.final or self._responses is not None:
            if self._responses is None:
                self._responses = SingleResponse()
            gathered = self._responses.gather(response)
            if gathered is None:
                return
            response = gathered
        decoded, self._decoded = self._decoded, None
        if decoded is None:  # it was answered
            return
        # No cycle: it refers to this call.
        self._pending = None
        try:
            if response.trace:
                self._trace = response.trace
                self._answered_ns = monotonic_ns()
                if self.ended:  # the client has gone
                    end_trace(self.front_end.engine, response.trace, GRPC, (self.opened_ns, self._read_ns))
            if not self.ended:
                if SWITCHES.access:
                    self.response = response
                self.request_id = response.id
                if response.error is not None:
                    response.error.model = response.model_name
                    self.fail(response.error)
                elif self.head.load_format:
                    self.spawn(self._answer_with_load, response, decoded)
                elif self._is_slow:
                    self.spawn(self._answer_elsewhere, response, decoded)
                else:
                    self._encode(response, decoded)
        except Exception as error:
            self.fail(error)
        finally:
            self.free()

    def _end(self, status: Status) -> None:
        super()._end(status)
        if self._trace:
            sent = (self._answered_ns, monotonic_ns())
            end_trace(self.front_end.engine, self._trace, GRPC, (self.opened_ns, self._read_ns), sent)

    def _encode(self, response: InferenceResponse, decoded: DecodedRequest) -> None:
        parts, size = encode_response(response, decoded.plan, decoded.model.spec)
        if self.head.response_encoding is IDENTITY:
            self.reply(parts, size)
        elif size < LARGE:
            self.reply(*self.deflate(parts, size))
        else:
            self.spawn(self._deflate_elsewhere, parts, size)

    def _answer_with_load(self, response: InferenceResponse, decoded: DecodedRequest) -> None:
        load = self.front_end.load_reports.field(self.head.load_format, response.model_name)
        if load is not None:
            self.trailers = ok_trailers(*load)
        if self._is_slow:
            self._answer_elsewhere(response, decoded)
        else:
            self._encode(response, decoded)

    def _answer_elsewhere(self, response: InferenceResponse, decoded: DecodedRequest) -> None:
        encoded = self.front_end.bridge.run(encode_response, response, decoded.plan, decoded.model.spec)
        if self.head.response_encoding is IDENTITY:
            self.reply(*encoded)
        else:
            self._deflate_elsewhere(*encoded)

    def _deflate_elsewhere(self, parts: list[Buffer], size: int) -> None:
        if not self.ended:
            self.reply(*self.front_end.bridge.run(self.deflate, parts, size))

    def on_cancel(self, cause: CancelCause) -> None:
        if self._pending is not None:
            self._pending.cancel(cause)


# --- ModelStreamInfer

# A stream whose client does not take its answers, or whose requests are that large together, is read no further.
MOST_UNSENT: Final = 1 << 20
MOST_HELD: Final = 64 << 20


class _StreamRequest(AnsweredRequest):
    """A request of the stream. `ready` is the message that waits for those of the requests before it, `failure` an
    error that ends the whole call when those are answered. A request that was refused has no `decoded`.
    """

    __slots__ = ("_call", "decoded", "failure", "ready")

    def __init__(self, call: StreamInferCall, decoded: DecodedRequest | None, size: int) -> None:
        super().__init__(size, decoded is not None and decoded.model.spec.decoupled)
        self._call = call
        self.decoded = decoded
        self.ready: Encoded | None = None
        self.failure: Exception | None = None

    def deliver(self, response: InferenceResponse, answer: InferenceResponse | None) -> None:
        if answer is not None:
            try:
                self._call.answer(self, answer)
            except Exception as error:
                self._call.fail(error)


class StreamInferCall(Call):
    """A stream of requests, each submitted on arrival. Responses of models with one response per request are sent in
    the order of the requests, those of decoupled models as they arrive.

    The client is not read while it has too many requests in flight or too many unread answers. A decoupled model gets
    an acknowledgement when its responses were written to the socket, so that it waits for a slow reader.
    """

    __slots__ = (
        "_failure",
        "_has_ended",
        "_held",
        "_in_flight",
        "_inbox",
        "_is_deflating",
        "_is_paused",
        "_is_stopping",
        "_is_waiting",
        "_ordered",
        "_outbox",
        "_sent",
        "_unsent_responses",
    )

    def __init__(self, front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._inbox: deque[Message] = deque()
        # Those whose responses are sent in order, the oldest first.
        self._ordered: deque[_StreamRequest] = deque()
        self._in_flight: dict[_StreamRequest, None] = {}
        # Still to be compressed.
        self._outbox: deque[tuple[_StreamRequest | None, Encoded]] = deque()
        # Responses of decoupled models: each is sent when the stream has sent so many bytes.
        self._unsent_responses: deque[tuple[int, _StreamRequest]] = deque()
        self._sent = 0
        self._failure: Exception | None = None
        self._held = 0
        self._has_ended = False
        self._is_paused = False
        self._is_waiting = False
        self._is_deflating = False
        self._is_stopping = False
        front_end.streams.add(self.end_at_stop)

    # --- requests

    def on_message(self, message: Buffer) -> None:
        if self._due and self.has_expired():
            return
        if self._inbox or self._is_waiting or self._is_full():
            self._inbox.append(Message(False, message))
            self._hold_up()
        else:
            self._begin(message)

    def on_compressed(self, content: Buffer) -> None:
        self._inbox.append(Message(True, content))
        self._pump()

    def on_end(self) -> None:
        self._has_ended = True
        self._finish_if_done()

    def moved(self) -> None:
        self._note_sent()

    def drained(self) -> None:
        self._note_sent()
        self._pump()

    def _note_sent(self) -> None:
        """Tell the models of the responses that are sent."""
        waiting, sent = self._unsent_responses, self._sent - self.unsent
        while waiting and waiting[0][0] <= sent:
            waiting.popleft()[1].take(1)

    def _is_full(self) -> bool:
        return (
            self._failure is not None
            or len(self._in_flight) >= self.front_end.options.stream_requests
            or self._held > MOST_HELD
            or self.unsent > MOST_UNSENT
        )

    @property
    def is_held_up(self) -> bool:
        return self._is_paused

    def _hold_up(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.pause()

    def _pump(self) -> None:
        """Begin requests that had to wait, as many as there is room for."""
        while self._inbox and not self._is_waiting and not self._is_full() and not self.ended:
            compressed, content = self._inbox.popleft()
            if not compressed:
                self._begin(content)
            elif MOST_INFLATED * len(content) > LARGE:
                self._begin_elsewhere(content, compressed=True)
            else:
                try:
                    message = self.inflate(content)
                except GrpcError as error:
                    self.fail(error)
                else:
                    self._begin(message)
        if self._inbox:
            self._hold_up()
        elif self._is_paused and not self._is_waiting:
            self._is_paused = False
            self.resume()
        self._finish_if_done()

    def _begin(self, message: Buffer) -> None:
        try:
            self._submit(self.front_end.decode(message, self.head.forwarded, stream=True), len(message))
        except WouldBlock:
            self._begin_elsewhere(message, compressed=False)
        except Exception as error:  # the request boundary: whatever goes wrong with a request becomes its answer here
            self._refuse(error, message)

    def _begin_elsewhere(self, content: Buffer, *, compressed: bool) -> None:
        """Begin a request that first has to wait for something. Those behind it wait with it."""
        self._is_waiting = True
        self.busy += 1
        self.front_end.spawn(self._begin_waiting, content, compressed)

    def _begin_waiting(self, content: Buffer, compressed: bool) -> None:
        message = content
        try:
            if compressed:
                message = self.front_end.bridge.run(self.inflate, content)
            decoded = self.front_end.decode_waiting(message, self.head.forwarded, stream=True)
            if not self.ended:
                self._submit(decoded, len(message))
        except Exception as error:  # the same boundary
            self._refuse(error, message)
        finally:
            self._is_waiting = False
            self.free()
        self._pump()

    def _submit(self, decoded: DecodedRequest, size: int) -> None:
        request = _StreamRequest(self, decoded, size)
        if self.front_end.trace_gate.is_open:
            request.read_ns = monotonic_ns()
            self.note_client_trace(decoded.request)
        self._in_flight[request] = None
        self._held += size
        if not request.is_streamed:
            self._ordered.append(request)
        self.busy += 1
        is_slow = size >= LARGE and decoded.request.may_be_passed
        submit = self.front_end.bridge.submit
        request.begin(
            submit(decoded.model, decoded.request, request.respond, streamed=request.is_streamed, is_slow=is_slow)
        )

    def _refuse(self, error: Exception, message: Buffer) -> None:
        if self.ended:
            return
        if isinstance(error, GrpcError | MalformedMessage):
            self.fail(error)
            return
        request = _StreamRequest(self, None, 0)
        request.is_over = True
        self._ordered.append(request)
        self._settle(request, self._error_message(error, request_id(message), None))
        error.__traceback__ = None  # see Call.fail
        self._finish_if_done()

    # --- responses

    def answer(self, request: _StreamRequest, response: InferenceResponse) -> None:
        """A response for the client, the last one to its request if `request.is_over`."""
        if request.is_over:
            del self._in_flight[request]
            self._held -= request.size
        answered_ns = monotonic_ns() if request.trace and request.is_over else 0
        if not self.ended:
            try:
                encoded = self._encoded(request, response)
            except Exception as error:  # the request boundary, of responses
                encoded = self._failed(request, response.id, error, Origin.FAILED)
            if not self.ended:
                self._settle(request, encoded)
        if answered_ns:
            sent = NOT_NOTED if self.ended else (answered_ns, monotonic_ns())
            end_trace(self.front_end.engine, request.trace, GRPC, (request.read_ns, request.read_ns), sent)
        if request.is_over:
            self.free()
        if not self.ended and (self._inbox or self._is_paused or self._has_ended or self._is_stopping):
            self._pump()

    def _encoded(self, request: _StreamRequest, response: InferenceResponse) -> Encoded | None:
        """The message for a response; None if the client gets none."""
        decoded = request.decoded
        assert decoded is not None
        if response.error is not None:
            response.error.model = response.model_name
            return self._failed(request, response.id, response.error, response.origin)
        if request.is_streamed and response.is_end:
            plan = decoded.plan
            if not plan.empty_final:
                return None
            return encode_without_outputs(response.id, response.model_name, plan.model_version, final=True)
        return in_stream(encode_response(response, decoded.plan, decoded.model.spec, FINAL[request.is_over]))

    def _failed(self, request: _StreamRequest, identifier: str, error: Exception, origin: Origin) -> Encoded | None:
        """The message for a request that failed; None if the whole call ends with the error, after those before it."""
        if origin is Origin.REFUSED:
            return self._error_message(error, identifier, None)
        if self.head.metadata.text("triton_grpc_error") == "true":
            request.failure = error
            return None
        return self._error_message(error, identifier, request)

    def _error_message(self, error: Exception, identifier: str, request: _StreamRequest | None) -> Encoded:
        """`request` is that of a request that failed after it was accepted; None if it was refused."""
        status = status_of(error)
        log_error(error, status, self.head.path, identifier)
        self.front_end.count_error(self.head.method, error, status)
        text = message_of(error, self.front_end.options.error_hints)
        if isinstance(error, ServerError):
            error.__traceback__ = None  # see Call.fail
        if request is None or request.decoded is None:
            return encode_without_outputs(identifier, error=text)
        decoded = request.decoded
        names = decoded.request.model_name, decoded.plan.model_version
        return encode_without_outputs(identifier, *names, final=request.is_over, error=text)

    def _settle(self, request: _StreamRequest, encoded: Encoded | None) -> None:
        """Send a message for `request`, or keep it until those before it are answered. None: there is no message."""
        if request.is_streamed:
            if encoded is not None:
                self._write(encoded, request)
            elif request.failure is not None:
                self._end_with(request.failure)
            return
        ordered = self._ordered
        if encoded is not None and len(ordered) == 1 and ordered[0] is request:
            ordered.clear()
            self._write(encoded)
            return
        request.ready = encoded
        if encoded is not None:
            self._held += encoded[1]
        while ordered and ordered[0].is_over:
            first = ordered.popleft()
            if first.ready is not None:
                self._held -= first.ready[1]
                self._write(first.ready)
            elif first.failure is not None:
                self._end_with(first.failure)

    def _end_with(self, failure: Exception) -> None:
        """End the call with an error, after the messages that are still being compressed."""
        self._ordered.clear()
        if self._outbox or self._is_deflating:
            self._failure = failure
        else:
            self.fail(failure)

    def _write(self, encoded: Encoded, request: _StreamRequest | None = None) -> None:
        """`request` is that of a decoupled model."""
        if self.head.response_encoding is IDENTITY:
            self._send(request, *encoded)
        else:
            self._outbox.append((request, encoded))
            self._write_deflated()

    def _send(self, request: _StreamRequest | None, parts: Sequence[Buffer], size: int, flag: bytes = PLAIN) -> None:
        self._sent += size + PREFIX
        if request is not None:
            self._unsent_responses.append((self._sent, request))
        self.send(parts, size, flag)
        if request is not None:
            self._note_sent()

    def _write_deflated(self) -> None:
        while self._outbox and not self._is_deflating:
            request, (parts, size) = self._outbox.popleft()
            if size < LARGE:
                self._send(request, *self.deflate(parts, size))
            else:
                # Those behind it wait with it.
                self._is_deflating = True
                self.spawn(self._deflate_elsewhere, request, parts, size)
        if self._failure is not None and not self._is_deflating:
            self.fail(self._failure)

    def _deflate_elsewhere(self, request: _StreamRequest | None, parts: list[Buffer], size: int) -> None:
        deflated = self.front_end.bridge.run(self.deflate, parts, size)
        self._is_deflating = False
        if not self.ended:
            self._send(request, *deflated)
            self._write_deflated()
            self._pump()

    # --- the end

    def end_at_stop(self) -> None:
        self._is_stopping = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not (self._has_ended or self._is_stopping) or (
            self._inbox or self._is_waiting or self._in_flight or self._ordered or self._outbox or self._is_deflating
        ):
            return
        if self._has_ended:
            self.finish()
        else:
            self.fail(stopping())

    def _end(self, status: Status) -> None:
        super()._end(status)
        self.front_end.streams.remove(self.end_at_stop)

    def on_cancel(self, cause: CancelCause) -> None:
        self._inbox.clear()
        self._ordered.clear()
        self._outbox.clear()
        self._unsent_responses.clear()
        for request in list(self._in_flight):
            if request.pending is not None:
                request.pending.cancel(cause)


# --- an InferenceResponse as a ModelInferResponse, alone or in a ModelStreamInferResponse. The bytes before the tensors
# are written once for all responses of a model whose outputs have one form: only the id differs. Large tensors are sent
# from where they are.

# The parts of a message, and their size in bytes together.
Encoded = tuple[list[Buffer], int]

LARGEST_MESSAGE: Final = 2**31 - 1
_MOST_HEADS = 1024
# Joining smaller tensors is faster than sending them apart.
_LARGE: Final = 32768

_ID: Final = 3
_PARAMETERS: Final = 4
_OUTPUTS: Final = 5
_CONTENTS: Final = 6
_INFER_RESPONSE: Final = 2
_INT64: Final = range(-(2**63), 2**63)
_DOUBLE: Final = Struct("<d")


def _entry(key: str, value: bytes) -> bytes:
    """An entry of a map of InferParameter."""
    return length_field(_PARAMETERS, string_field(1, key) + length_field(2, value))


# A `oneof` keeps its false.
FINAL: Final = {final: _entry("triton_final_response", bytes((1 << 3, final))) for final in (False, True)}


class _Head:
    """The bytes before and between the tensors of responses that have the same layout. Any thread."""

    __slots__ = ("names", "outputs", "pieces", "size")

    def __init__(self, model_name: str, model_version: int, layout: TensorLayout) -> None:
        self.names = string_field(1, model_name) + string_field(2, str(model_version))
        self.outputs = b"".join([_output(*entry[:3]) for entry in layout.entries])
        # The bytes before each tensor, and where the tensor begins and ends in a run.
        self.pieces = [(length_prefix(_CONTENTS, end - start), start, end) for *_, start, end in layout.entries]
        # That of a message without an id and parameters.
        self.size = len(self.names) + len(self.outputs) + layout.size + sum([len(piece[0]) for piece in self.pieces])


# By the model, its version, and the layout of the outputs.
_heads: Final[Memo[tuple[str, int, TensorLayout], _Head]] = Memo(_MOST_HEADS)


def encode_without_outputs(
    request_id: str, model_name: str = "", model_version: str = "", *, final: bool | None = None, error: str = ""
) -> Encoded:
    """Return a ModelStreamInferResponse that ends the responses to a request, or says why it failed.

    A refused request has its id alone. Of others, `final` says if this is the last response, and `model_version` is the
    text in the request.
    """
    message = string_field(1, model_name) + string_field(2, model_version) + string_field(_ID, request_id)
    if final is not None:
        message += FINAL[final]
    return in_stream(([message], len(message)), error)


def in_stream(encoded: Encoded, error: str = "") -> Encoded:
    """A ModelInferResponse as the `infer_response` of a ModelStreamInferResponse."""
    parts, size = encoded
    head = length_prefix(_INFER_RESPONSE, size)
    if error:
        head = string_field(1, error) + head
    elif size <= _LARGE and len(parts) == 1:
        return [b"".join((head, *parts))], len(head) + size
    return _limited([head, *parts], len(head) + size)


def encode_response(
    response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec, parameters: bytes = b""
) -> Encoded:
    """Return a ModelInferResponse, with `parameters` before the model's own.

    Raises InvalidRequest for an output that cannot be classified, or if the message is too large.
    """
    middle = string_field(_ID, response.id) + parameters if response.id else parameters
    if response.parameters:
        middle += b"".join([_entry(key, _parameter(key, value)) for key, value in response.parameters.items()])
    outputs: Outputs = response.outputs
    if plan.outputs is not None:
        outputs = [classified(output, plan.form_of(output.name)[1], spec) for output in outputs]
    contents: list[Buffer] = []
    if type(outputs) is PackedOutputs:
        layout = outputs.layout
    else:
        contents = [output.content() for output in outputs]
        named = zip(outputs, contents, strict=True)
        layout = layout_of([(each.name, each.datatype, each.shape, len(content)) for each, content in named])
    key = (response.model_name, response.model_version, layout)
    head = _heads.get(key)
    if head is None:
        head = _heads[key] = _Head(*key)
    parts: list[Buffer] = [head.names + middle + head.outputs]
    if type(outputs) is PackedOutputs:
        run = outputs.content
        for prefix, start, end in head.pieces:
            parts += (prefix, run[start:end])
    else:
        for (prefix, _, _), content in zip(head.pieces, contents, strict=True):
            parts += (prefix, content)
    size = head.size + len(middle)
    if layout.size <= _LARGE:
        return [b"".join(parts)], size
    return _limited(parts, size)


def _limited(parts: list[Buffer], size: int) -> Encoded:
    if size > LARGEST_MESSAGE:
        raise InvalidRequest(
            f"Response has byte size {size} which exceeds gRPC's byte size limit {LARGEST_MESSAGE}.",
            hint="ask for fewer outputs, or send fewer items at once",
        )
    return parts, size


def _output(name: str, datatype: str, shape: Shape) -> bytes:
    return length_field(_OUTPUTS, string_field(1, name) + string_field(2, datatype) + packed_integers(3, shape))


def _parameter(key: str, value: Parameter) -> bytes:
    """An InferParameter, whose `oneof` is written though it has its default value."""
    if isinstance(value, bool):
        return bytes((1 << 3, value))
    if isinstance(value, int):
        if value not in _INT64:
            raise BackendFailed(
                f"the model gave its response the parameter '{key}', which is not a 64-bit integer: {value}"
            )
        return bytes((2 << 3,)) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return bytes((4 << 3 | 1,)) + _DOUBLE.pack(value)
    return length_field(3, value.encode("utf-8", "replace"))
