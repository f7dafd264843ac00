"""A request of a stream of many, as ModelStreamInfer and a WebSocket have them."""

from __future__ import annotations

from trident.core.compiled import mypyc_attr
from trident.core.frontend.bridge import SingleResponse
from trident.core.inference.pending_request import PendingRequest, StreamedRequest
from trident.core.inference.response import InferenceResponse


@mypyc_attr(allow_interpreted_subclasses=True)
class AnsweredRequest:
    """On the hub. A subclass has `deliver(response, answer)`, which takes a response of the model, and what the client
    gets of it, None if that is nothing yet.

    `is_streamed`: it may have any number of answers. `is_over`: its last response is there. `size` is the request's in
    bytes, `trace` the number of its trace, 0 without one; it was read at `read_ns` of the monotonic clock. `pending` is
    None before it is submitted and after its last response; `taken` responses left before it was set.
    """

    __slots__ = ("_responses", "is_over", "is_streamed", "pending", "read_ns", "size", "taken", "trace")

    def __init__(self, size: int, is_streamed: bool) -> None:
        self._responses: SingleResponse | None = None
        self.size = size
        self.is_streamed = is_streamed
        self.is_over = False
        self.pending: PendingRequest | None = None
        self.taken = 0
        self.trace = 0
        self.read_ns = 0

    def deliver(self, response: InferenceResponse, answer: InferenceResponse | None) -> None:
        raise NotImplementedError

    def respond(self, response: InferenceResponse) -> None:
        """Take a response of the model."""
        if self.is_over:
            return
        answer: InferenceResponse | None = response
        if not self.is_streamed and not (response.final and self._responses is None):
            self._responses = self._responses or SingleResponse()
            answer = self._responses.gather(response)
        self.trace = response.trace or self.trace
        if response.final:
            self.is_over = True
            # No cycle: it refers to this request.
            self.pending = None
        self.deliver(response, answer)

    def begin(self, pending: PendingRequest) -> None:
        """The request is submitted, and may have been answered already."""
        if not self.is_over:
            self.pending = pending
            if self.taken:
                self.take(self.taken)

    def take(self, count: int) -> None:
        """Acknowledge `count` sent responses of a decoupled model, which may then send as many more."""
        pending = self.pending
        if isinstance(pending, StreamedRequest):
            pending.take(count)
        elif pending is None:
            self.taken += count
