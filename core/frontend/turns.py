"""The turns that long work on a front end's thread leaves to other requests."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_S = 0.0002


class Turns:
    """Call it between the steps of the work: it gives way when the work has taken 0.2 ms since it did."""

    def __init__(self, give_way: Callable[[], None], *, now: Callable[[], float] = time.perf_counter) -> None:
        """`give_way` is that of the bridge; `now` is a clock in seconds."""
        self._give_way = give_way
        self._now = now
        self._since = now()

    def __call__(self) -> None:
        if self._now() - self._since >= _LONGEST_S:
            self._give_way()
            self._since = self._now()
