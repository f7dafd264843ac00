"""ModelInfer: one request, one response, and no greenlet between them.

Source: docs/spec/grpc.md sections 2 and 3.
"""

from __future__ import annotations

from time import monotonic_ns

from trident.core.frontend.bridge import SingleResponse
from trident.core.frontend.request import GRPC, end_trace
from trident.core.grpc.call import LARGE, UnaryCall
from trident.core.grpc.front_end import GrpcFrontEnd, WouldBlock
from trident.core.grpc.headers import RequestHead, ok_trailers
from trident.core.grpc.receiving import IDENTITY
from trident.core.grpc.request import DecodedRequest
from trident.core.grpc.response import encode_response
from trident.core.grpc.status import Status
from trident.core.grpc.transport import Stream
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer
from trident.core.observability.switches import SWITCHES


class InferCall(UnaryCall):
    __slots__ = ("_answered_ns", "_decoded", "_is_slow", "_pending", "_read_ns", "_responses", "_trace")

    def __init__(self, front_end: GrpcFrontEnd, stream: Stream, head: RequestHead) -> None:
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
        # No cycle: it refers to this call.
        self._pending = None
        if response.trace:
            self._note_trace(response.trace)
        if not self.ended:
            assert decoded is not None
            if SWITCHES.access:
                self.response = response
            self.request_id = response.id
            if response.error is not None:
                self.fail(response.error)
            elif self.head.load_format:
                self.spawn(self._answer_with_load, response, decoded)
            elif self._is_slow:
                self.spawn(self._answer_elsewhere, response, decoded)
            else:
                self._answer(response, decoded)
        self.free()

    def _note_trace(self, number: int) -> None:
        self._trace = number
        self._answered_ns = monotonic_ns()
        if self.ended:  # the client has gone
            end_trace(self.front_end.engine, number, GRPC, (self.opened_ns, self._read_ns))

    def _end(self, status: Status) -> None:
        super()._end(status)
        if self._trace:
            sent = (self._answered_ns, monotonic_ns())
            end_trace(self.front_end.engine, self._trace, GRPC, (self.opened_ns, self._read_ns), sent)

    def _answer(self, response: InferenceResponse, decoded: DecodedRequest) -> None:
        try:
            parts, size = encode_response(response, decoded.plan, decoded.model.spec)
            if self.head.response_encoding is IDENTITY:
                self.reply(parts, size)
            elif size < LARGE:
                self.reply(*self.deflate(parts, size))
            else:
                self.spawn(self._deflate_elsewhere, parts, size)
        except Exception as error:  # the request boundary, of responses
            self.fail(error)

    def _answer_with_load(self, response: InferenceResponse, decoded: DecodedRequest) -> None:
        load = self.front_end.load_reports.field(self.head.load_format, response.model_name)
        if load is not None:
            self.trailers = ok_trailers(*load)
        if self._is_slow:
            self._answer_elsewhere(response, decoded)
        else:
            self._answer(response, decoded)

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
