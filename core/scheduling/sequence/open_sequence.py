"""One sequence: its requests, in their order, and its states."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest, Inputs
from core.inference.response import InferenceResponse, OnResponse

if TYPE_CHECKING:
    from core.scheduling.sequence.lane import Lane


class Owner(Protocol):
    """The scheduler of a sequence."""

    def answered(self, sequence: OpenSequence, response: InferenceResponse) -> None: ...

    def cancelled(self, sequence: OpenSequence, pending: PendingRequest) -> None: ...


class OpenSequence:
    """Guarded by the scheduler's lock, except for what belongs to the request inside.

    Without a `lane` it is in the backlog, or has ended. `is_ended`: no further request joins it, and it leaves its slot
    when those it has are done. `inside` is its one request that the instance's batcher has; `waiting` are those after
    it, None for none. `active_ns` is when it was last given a request, or when its last request was done. `expires_ns`
    is when the timeout of a request is over that waits in the backlog, 0 for never.

    Of the request inside: `executed` is what the backend gets, `sent` what the client sent, `on_response` its callback.
    """

    __slots__ = (
        "_owner",
        "active_ns",
        "correlation_id",
        "executed",
        "expires_ns",
        "inside",
        "is_ended",
        "lane",
        "on_response",
        "sent",
        "slot",
        "states",
        "waiting",
    )

    def __init__(self, owner: Owner, correlation_id: int | str, states: Inputs) -> None:
        self._owner = owner
        self.correlation_id = correlation_id
        self.states = states
        self.lane: Lane | None = None
        self.slot = 0
        self.is_ended = False
        self.active_ns = 0
        self.expires_ns = 0
        self.inside: PendingRequest | None = None
        self.waiting: deque[PendingRequest] | None = None
        self.executed: InferenceRequest | None = None
        self.sent: InferenceRequest | None = None
        self.on_response: OnResponse | None = None

    @property
    def is_busy(self) -> bool:
        return self.inside is not None or self.waiting is not None

    @property
    def queued(self) -> int:
        """The requests that wait behind the one inside."""
        return 0 if self.waiting is None else len(self.waiting)

    def push(self, pending: PendingRequest) -> None:
        """Let `pending` wait for those before it."""
        # What the submitting thread does at the end of its turn is no concern of a request that waits.
        pending.defer = None
        pending.on_cancel = self._cancel
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(pending)

    def pop(self) -> PendingRequest:
        """The request that waited longest. Call it only if one waits."""
        assert self.waiting is not None
        pending = self.waiting.popleft()
        pending.on_cancel = None
        if not self.waiting:
            # An empty deque takes as much memory as the rest of an open sequence.
            self.waiting = None
        return pending

    def pop_all(self) -> list[PendingRequest]:
        """All that wait."""
        popped = []
        while self.waiting is not None:
            popped.append(self.pop())
        return popped

    def respond(self, response: InferenceResponse) -> None:
        """The callback of the request inside."""
        self._owner.answered(self, response)

    def _cancel(self, pending: PendingRequest) -> None:
        self._owner.cancelled(self, pending)
