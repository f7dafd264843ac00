"""A request that is executed for all clients that ask the same at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import DeadlineExceeded, QueueFull, RequestCancelled, ServerError, ServerStopping
from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.response_cache.response_cache import LookUp

if TYPE_CHECKING:
    from core.scheduling.caching_scheduler import CachingScheduler

# What happened to the request that was executed, and need not happen to those that wait for it.
_OWN_FAILURES = (RequestCancelled, DeadlineExceeded, QueueFull, ServerStopping)


class SingleFlight:
    """Takes the responses to the executed request in place of its caller, and passes them on at once.

    `on_response` is the caller's. `start_ns` is when the first of them came, `lookup_ns` how long it was looked up.
    `followers` wait for the answer, in the
    order in which they came; they are guarded by the scheduler's lock. `look_up` is set while the answer is looked for
    in another process, before the request is executed.
    """

    __slots__ = (
        "_count",
        "_first",
        "_scheduler",
        "followers",
        "key",
        "look_up",
        "lookup_ns",
        "on_response",
        "start_ns",
    )

    def __init__(self, scheduler: CachingScheduler, key: bytes, pending: PendingRequest, start_ns: int) -> None:
        self._scheduler = scheduler
        self.key = key
        self.start_ns = start_ns
        self.lookup_ns = 0
        self.look_up: LookUp | None = None
        self.on_response = pending.on_response
        self.followers: dict[PendingRequest, None] = {}
        self._first: InferenceResponse | None = None
        # Responses before the final one.
        self._count = 0

    def respond(self, response: InferenceResponse) -> None:
        """A model may send its response and then an empty final one; any other number is not for the cache."""
        try:
            self.on_response(response)
        finally:
            if not response.final:
                self._first = self._first or response
                self._count += 1
            elif not self._count or response.error is not None:
                self._scheduler.land(self, response)
            else:
                is_single = self._count == 1 and not response.outputs
                self._scheduler.land(self, self._first if is_single else None)

    def leave(self, pending: PendingRequest) -> None:
        """`pending`, which waits, was cancelled. Any thread."""
        self._scheduler.leave(self, pending)

    @staticmethod
    def is_own_failure(error: ServerError) -> bool:
        """Whether the error concerns the executed request alone, so that another attempt may succeed."""
        return isinstance(error, _OWN_FAILURES)
