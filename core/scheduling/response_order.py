"""`preserve_ordering`: the responses of a model are delivered in the order in which its requests arrived.

Responses to the earliest request that is not done are delivered as they come; those to later ones wait for its final
response. Triton documents this but orders by completion. A request that leaves the queue without being executed
is told so at once, as there.
Source: docs/spec/schedulers.md section 3.2, "Order of responses".
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress

from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.scheduling.delivery import Respond, flush


class ResponseOrder:
    """Holds responses back until the final ones of all earlier requests are delivered. Thread-safe.

    Responses are delivered one at a time, on the thread that completed the earliest request or on one that already
    delivers. No lock is held during a callback, so it may submit another request.
    """

    def __init__(self, deliver: Respond) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._arrived: deque[PendingRequest] = deque()
        self._answered: dict[PendingRequest, list[InferenceResponse]] = {}
        self._delivering = False

    def enter(self, pending: PendingRequest) -> None:
        """Note that `pending` arrived after all requests noted before."""
        with self._lock:
            self._arrived.append(pending)

    def respond(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Deliver a response to `pending` in its turn: now, or later on another thread."""
        with self._lock:
            self._answered.setdefault(pending, []).append(response)
        self._go_on()

    def leave(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Deliver the only response to `pending` now; the others no longer wait for it. It may not have entered."""
        with self._lock, suppress(ValueError):
            self._arrived.remove(pending)
        self._deliver(pending, response)
        self._go_on()

    def _go_on(self) -> None:
        """Deliver what is due, unless another thread does."""
        with self._lock:
            if self._delivering:
                return
            self._delivering = True
        delivered: list[PendingRequest] = []
        while (turn := self._next()) is not None:
            first, answers = turn
            for answer in answers:
                self._deliver(first, answer)
            delivered.append(first)
        # The caller flushes the batch that it executed. The requests delivered here may belong to other batches.
        flush(delivered)

    def _next(self) -> tuple[PendingRequest, list[InferenceResponse]] | None:
        """The earliest request that is not done, with its responses; None if it has none, which ends the delivery."""
        with self._lock:
            if not self._arrived or self._arrived[0] not in self._answered:
                self._delivering = False
                return None
            first = self._arrived[0]
            answers = self._answered.pop(first)
            if answers[-1].final:
                self._arrived.popleft()
            return first, answers
