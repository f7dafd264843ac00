"""The back-off of restarts."""

from __future__ import annotations

import time
from collections.abc import Callable

_EARLY_S = 10.0
_MAX_DELAY_S = 31


def restart_delay_s(early_ends: int) -> int:
    """Seconds until the restart of a process after `early_ends` early ends in a row; the first is immediate."""
    return min(_MAX_DELAY_S, (1 << max(0, early_ends - 1)) - 1)


class Restarts:
    """The restarts of one process, or of several processes of one kind. Times are monotonic seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = 0.0
        self._early_ends = 0
        self._next = 0.0

    def is_due(self) -> bool:
        return self._now() >= self._next

    def started(self) -> None:
        self._started = self._now()

    def ended(self) -> int:
        """Record an end. Returns the seconds until the next start is due."""
        now = self._now()
        self._early_ends = self._early_ends + 1 if now - self._started < _EARLY_S else 0
        delay = restart_delay_s(self._early_ends)
        self._next = now + delay
        return delay
