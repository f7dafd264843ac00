"""The limit of requests in flight for each step, which all requests for the ensemble share.

Source: docs/spec/schedulers.md section 3.5, "max_inflight_requests".
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from core.scheduling.ensemble.flow import Flow
from core.scheduling.ensemble.plan import PlannedStep

if TYPE_CHECKING:
    from core.scheduling.ensemble.request import EnsembleRequest

# What waits for a place, or has one and is to be submitted.
Ready = tuple["EnsembleRequest", PlannedStep, Flow]


class Places:
    """`limit` requests of each of the steps may be in flight; what exceeds them waits in its order. Any thread.

    Nothing blocks, unlike in Triton: a decoupled step before a full one is held back by the window of its responses,
    because a response counts as taken only when the steps after it are done.
    """

    def __init__(self, limit: int, steps: int) -> None:
        self._lock = threading.Lock()
        self._free = [limit] * steps
        self._waiting: list[deque[Ready]] = [deque() for _ in range(steps)]

    def enter(self, ready: Ready) -> bool:
        """Take a place; False if there is none: then `leave` returns `ready` in its turn."""
        index = ready[1].index
        with self._lock:
            if not self._free[index]:
                self._waiting[index].append(ready)
                return False
            self._free[index] -= 1
        return True

    def leave(self, step: PlannedStep) -> Ready | None:
        """Give a place back. Returns what has it now, if something waited."""
        with self._lock:
            waiting = self._waiting[step.index]
            if waiting:
                return waiting.popleft()
            self._free[step.index] += 1
        return None

    def withdraw(self, request: EnsembleRequest) -> int:
        """Remove what waits of `request`. Returns how much that was."""
        count = 0
        with self._lock:
            for index, waiting in enumerate(self._waiting):
                kept = deque(ready for ready in waiting if ready[0] is not request)
                count += len(waiting) - len(kept)
                self._waiting[index] = kept
        return count
