"""Whether Redis is asked at all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("trident.cache")

MOST_LATE = 5
"""So many look-ups in a row that spend their budget open the circuit."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class CircuitBreaker:
    """Open while Redis is gone or slow: then nobody waits for it. Any thread.

    It begins open and is closed by the first connection. Each change is logged once.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._lock = threading.Lock()
        self.is_open = True
        # --- guarded by the lock
        # Whether the log says that it is open: at the beginning it is not.
        self._was_said = False
        self._late_in_a_row = 0
        self._pause_s = FIRST_PAUSE_S
        self._closed_at_s: float | None = None

    def note_late(self, count: int) -> None:
        """So many look-ups have spent their budget."""
        with self._lock:
            self._late_in_a_row += count
            if self._late_in_a_row < MOST_LATE:
                return
        self.open("it does not answer in time")

    def note_answer(self) -> None:
        """A look-up was answered in time."""
        self._late_in_a_row = 0

    def open(self, reason: str) -> None:
        """Ask no more until `close`. The first reason is logged."""
        with self._lock:
            was_said, self._was_said = self._was_said, True
            self.is_open = True
        if was_said:
            return
        _log.warning(
            "the response cache at %s is left out, and every request is executed: %s; it is tried again",
            self._address,
            reason,
        )

    def close(self) -> None:
        """Redis answers."""
        with self._lock:
            self._late_in_a_row = 0
            if not self.is_open:
                return
            self.is_open = self._was_said = False
            self._closed_at_s = self._clock()
        _log.info("the response cache at %s answers", self._address)

    def next_pause_s(self) -> float:
        """How long to wait before the next attempt; longer each time, until it has been closed for a while."""
        with self._lock:
            closed_at_s, self._closed_at_s = self._closed_at_s, None
            if closed_at_s is not None and self._clock() - closed_at_s > LONGEST_PAUSE_S:
                self._pause_s = FIRST_PAUSE_S
            pause_s = self._pause_s
            self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            return pause_s
