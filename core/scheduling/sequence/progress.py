"""How sequences go on from request to request, and how they end.

    the last request was answered, or it was idle for too long  -> its slot is free
    it waited for too long in the backlog                       -> DeadlineExceeded
    one of its requests was cancelled                           -> RequestCancelled
    its instance has lost its states                            -> InvalidRequest, as without a START
    the scheduler is closed                                     -> ServerStopping

What waits in a sequence that ends early is answered with the error.
Source: docs/spec/schedulers.md sections 3.3 and 3.4.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from core.errors import DeadlineExceeded, RequestCancelled, ServerError
from core.inference.pending_request import PendingRequest
from core.scheduling.execution import Clock
from core.scheduling.rejection import stopping
from core.scheduling.response_order import ResponseOrder
from core.scheduling.sequence.change import Change
from core.scheduling.sequence.first_batch import FirstBatch
from core.scheduling.sequence.lane import Lane
from core.scheduling.sequence.open_sequence import OpenSequence
from core.scheduling.sequence.rules import start_missing
from core.scheduling.sequence.seating import Seating

_log = logging.getLogger("trident.scheduling")

EndError = Callable[[PendingRequest], ServerError]


class Progress:
    """Every method is called under the scheduler's lock, and puts what must be done without it into a Change.

    `order` is None unless the responses keep the order of the requests. `first` is what the first batch waits for, None
    once it has begun. `unanswered` are the requests of all sequences that are not answered.
    """

    def __init__(
        self,
        model: str,
        seating: Seating,
        order: ResponseOrder | None,
        first: FirstBatch | None,
        lock: threading.Lock,
        clock: Clock,
    ) -> None:
        self._model = model
        self._seating = seating
        self._order = order
        self._clock = clock
        self._changed = threading.Condition(lock)
        self._watchers = 0
        self.first = first
        self.unanswered = 0

    # --- going on

    def go_on(self, sequence: OpenSequence, change: Change) -> None:
        """Let the next request of a sequence in a slot enter or, if it has ended, others have the slot.

        Call it only if no request is inside.
        """
        if sequence.waiting is not None and any(pending.cancelled for pending in sequence.waiting):
            self.end(sequence, cancelled, change)
        if sequence.waiting is not None:
            change.enter(sequence, sequence.pop())
            return
        if sequence.is_ended:
            self._seating.leave(sequence)
            if self._watchers:
                self._changed.notify_all()
            self.fill_slots(change)

    def fill_slots(self, change: Change) -> None:
        """Give the free slots to sequences of the backlog."""
        while (sequence := self._seating.promote(self._clock())) is not None:
            if self._order is not None:
                for pending in sequence.waiting or ():
                    self._order.enter(pending)
            if self.first is None:
                self.go_on(sequence, change)

    def release_first(self, change: Change) -> None:
        """Let the first requests enter, which have waited for each other."""
        self.first = None
        for lane in self._seating.lanes:
            ready = [lane.sequences[slot] for slot in sorted(lane.sequences)]
            lane.batcher.hold(len(ready))
            for sequence in ready:
                self.go_on(sequence, change)

    # --- ends

    def end(self, sequence: OpenSequence, error: EndError, change: Change) -> None:
        """Refuse all that waits in `sequence`, which gets no more requests. It keeps its slot."""
        self._seating.forget(sequence)
        for pending in sequence.pop_all():
            change.refuse(pending, error(pending))
            self.count_off()

    def end_now(self, sequence: OpenSequence, error: EndError, change: Change) -> None:
        """`end` it. It leaves its slot, or the backlog, as soon as no request is inside."""
        self.end(sequence, error, change)
        if sequence.lane is None:
            self._seating.leave(sequence)
        elif sequence.inside is None:
            self.go_on(sequence, change)

    def end_lost(self, lane: Lane, change: Change) -> None:
        """End the sequences of a lane whose instance has lost their states."""
        for sequence in list(lane.sequences.values()):
            self.end_now(sequence, _forgotten, change)

    def end_overdue(self, change: Change) -> int:
        """End the sequences whose time is over. Returns when the next one's is; `sys.maxsize` for never."""
        now_ns = self._clock()
        for sequence in self._seating.idle(now_ns):
            _log.debug("sequence %s of model '%s' was idle for too long", sequence.correlation_id, self._model)
            self._seating.forget(sequence)
            self.go_on(sequence, change)
        for sequence in self._seating.expired(now_ns):
            self.end_now(sequence, _expired, change)
        return self._seating.due_ns

    def end_after_requests(self, change: Change) -> None:
        """Let all sequences end with the requests that they have."""
        for sequence in self._seating:
            self._seating.forget(sequence)
            if not sequence.is_busy:
                self.go_on(sequence, change)

    def end_all(self, change: Change, because: str = "") -> None:
        """End all sequences now, those of the backlog first, so that none of them gets a slot."""
        self.first = None
        for sequence in [*self._seating.backlog, *self._seating.seated]:
            self.end_now(sequence, lambda pending: stopping(pending, self._model, because), change)

    # --- waiting for ends

    def count_off(self) -> None:
        """Note that a request is answered."""
        self.unanswered -= 1
        if self._watchers:
            self._changed.notify_all()

    def wait(self, is_so: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Release the lock and block until it is so. Returns whether that came in time."""
        self._watchers += 1
        try:
            return bool(self._changed.wait_for(is_so, timeout_s))
        finally:
            self._watchers -= 1


def cancelled(pending: PendingRequest) -> ServerError:
    """It has no text, as in Triton."""
    return RequestCancelled("", model=pending.request.model_name)


def _forgotten(pending: PendingRequest) -> ServerError:
    return start_missing(pending.request)


def _expired(pending: PendingRequest) -> ServerError:
    reason = "timeout of the corresponding sequence has been expired"
    return DeadlineExceeded(reason, model=pending.request.model_name)
