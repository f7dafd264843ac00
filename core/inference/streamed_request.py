"""A request whose caller says which of its responses it has passed on."""

from __future__ import annotations

from collections.abc import Callable

from core.inference.deferred import Defer
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import OnResponse


class StreamedRequest(PendingRequest):
    """The engine lets the model send only as much as fits into a window of responses that were sent and not taken.

    So a client that reads slowly holds back its own model, and costs no more memory than its window. The responses to
    any other request have no window.
    """

    __slots__ = ("on_take",)

    def __init__(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        defer: Defer | None = None,
        flush: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(request, on_response, defer=defer, flush=flush)
        # What `take` calls: set by the engine while the request is open.
        self.on_take: Callable[[StreamedRequest, int], None] | None = None

    def take(self, count: int = 1) -> None:
        """The oldest `count` responses have left: the model may send as much again. Any thread."""
        on_take = self.on_take
        if on_take is not None:
            on_take(self, count)
