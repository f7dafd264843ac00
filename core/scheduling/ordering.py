"""`preserve_ordering`: the responses of a model leave in the order in which its requests arrived.

Triton's own implementation orders by completion; here the documented contract holds.
Source: docs/spec/schedulers.md section 3.2, "Order of responses".
"""

from __future__ import annotations

import threading
from collections import deque

from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.scheduling.delivery import Respond, flush


class ResponseOrder:
    """Holds responses back until those of all earlier requests have left. Thread-safe.

    Responses leave one at a time, on the thread that completed the earliest request or on one that is delivering
    already; no lock is held meanwhile, so a callback may submit again.
    """

    def __init__(self, deliver: Respond) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._arrived: deque[PendingRequest] = deque()
        self._answered: dict[PendingRequest, InferenceResponse] = {}
        self._delivering = False

    def enter(self, pending: PendingRequest) -> None:
        """Note that `pending` arrived after all that were noted before."""
        with self._lock:
            self._arrived.append(pending)

    def respond(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Deliver the one response of `pending` when its turn has come, perhaps now, perhaps on another thread."""
        with self._lock:
            self._answered[pending] = response
            if self._delivering:
                return
            self._delivering = True
        delivered: list[PendingRequest] = []
        while True:
            with self._lock:
                if not self._arrived or self._arrived[0] not in self._answered:
                    self._delivering = False
                    break
                first = self._arrived.popleft()
                answer = self._answered.pop(first)
            self._deliver(first, answer)
            delivered.append(first)
        # They may be others than those of the batch that this thread has just run.
        flush(delivered)
