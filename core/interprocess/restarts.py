"""The back-off of restarts."""

from __future__ import annotations

import mmap
import signal
import time
from collections.abc import Callable

_EARLY_S = 10.0
_MAX_DELAY_S = 31
# A process that was killed, or that a request ended, can start: it is restarted at once.
_IMMEDIATE = 3


class Restarts:
    """The restarts of one process, or of several processes of one kind. Times are monotonic seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = 0.0
        self._early_ends = 0
        self._ended = float("-inf")
        self._next = 0.0

    def is_due(self) -> bool:
        return self._now() >= self._next

    def started(self) -> float:
        """Record a start. Returns its time, for `ended`."""
        self._started = self._now()
        return self._started

    def ended(self, started: float | None = None) -> int:
        """Record the end of the process that was started at `started`, or last.

        Returns the seconds until the next start is due. Processes that were started before another one ended, and end
        after it, are one failure.
        """
        now = self._now()
        started = self._started if started is None else started
        if started >= self._ended:
            self._early_ends = self._early_ends + 1 if now - started < _EARLY_S else 0
            self._ended = now
            self._next = now + min(_MAX_DELAY_S, (1 << max(0, self._early_ends - _IMMEDIATE)) - 1)
        return max(0, round(self._next - now))


def end_text(code: int) -> str:
    """Describe how a process ended, for the log: `code` is its exit status, or the negative number of a signal."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal: most of them have no name
        return f"was ended by signal {-code}"


_LENGTH = 8


class SharedNote:
    """At most `size` bytes in memory that is shared with all processes forked later. Empty at first."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, _LENGTH + size)

    def write(self, content: bytes) -> None:
        """Write `content`, cut to the size; the last one counts."""
        content = content[: len(self._memory) - _LENGTH]
        self._memory[_LENGTH : _LENGTH + len(content)] = content
        self._memory[:_LENGTH] = len(content).to_bytes(_LENGTH, "little")

    def read(self) -> bytes:
        length = int.from_bytes(self._memory[:_LENGTH], "little")
        return self._memory[_LENGTH : _LENGTH + length]
