"""Bounds the messages that have not arrived whole: how long their clients may be silent, and how much memory they hold.

Between two messages a client may wait as long as it likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Protocol

from core.waiting.deadlines import Deadlines

LIMIT_S: Final = 60.0
# A client that has sent nothing for so long loses its message before others do.
SILENCE_S: Final = 2.0


class Receiving(Protocol):
    """It must be hashable. `received` is how many bytes of the message have arrived."""

    @property
    def received(self) -> int: ...

    @property
    def is_held_up(self) -> bool:
        """Whether it is this server that does not let the client go on."""

    def stall(self) -> None:
        """Nothing has arrived for LIMIT_S seconds at least."""

    def crowd_out(self) -> None:
        """Its memory is needed: refuse the message."""


class _Progress:
    """`received` bytes of a message have arrived, the last of them at `since`, in seconds; `seen` at the last look."""

    __slots__ = ("received", "seen", "since")

    def __init__(self) -> None:
        self.received = 0
        self.seen = -1
        self.since = 0.0


class UnfinishedMessages:
    """On the hub's thread.

    Together they may hold `limit` bytes besides the largest of them, so that one alone is never refused. When they hold
    more, the largest of those whose clients are silent are refused; if that is not enough, the largest of all, so that
    clients of large messages do not keep out the others. So many are refused that an eighth of the limit is free,
    because a look at all messages takes time.
    """

    def __init__(self, deadlines: Deadlines, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self._deadlines = deadlines
        self._limit = limit
        self._now = now
        self._messages: dict[Receiving, _Progress] = {}
        self._total = 0
        # The total at which to look at them again.
        self._crowded = limit
        self._is_looking = False

    @property
    def total(self) -> int:
        """The bytes of all of them."""
        return self._total

    def __len__(self) -> int:
        return len(self._messages)

    def grew(self, receiving: Receiving) -> None:
        """A part of a message has arrived. This or other messages may be refused now."""
        progress = self._messages.get(receiving)
        if progress is None:
            progress = self._messages[receiving] = _Progress()
            self._look_later()
        received = receiving.received
        self._total += received - progress.received
        progress.received = received
        progress.since = self._now()
        if self._total > self._crowded:
            self._make_room()

    def remove(self, receiving: Receiving) -> None:
        """All of it has arrived, or nobody waits for it."""
        progress = self._messages.pop(receiving, None)
        if progress is not None:
            self._total -= progress.received
            if self._total <= self._limit:
                self._crowded = self._limit

    def expire(self) -> None:
        """Look for silent clients."""
        self._is_looking = False
        for receiving, progress in list(self._messages.items()):
            if progress.received != progress.seen or receiving.is_held_up:
                progress.seen = progress.received
            else:
                receiving.stall()
        self._look_later()

    def _look_later(self) -> None:
        if self._messages and not self._is_looking:
            self._is_looking = True
            self._deadlines.add(LIMIT_S, self)

    def _make_room(self) -> None:
        by_size = sorted(self._messages, key=attrgetter("received"))
        most = by_size[-1].received + self._limit
        if self._total > most:
            enough = most - self._limit // 8
            now = self._now()
            silent = [each for each in by_size if self._is_silent(each, now)]
            for candidates in (silent, by_size):
                while candidates and self._total > enough:
                    receiving = candidates.pop()
                    if receiving in self._messages:
                        receiving.crowd_out()
                        self.remove(receiving)
        self._crowded = max(self._limit, self._total + self._limit // 64)

    def _is_silent(self, receiving: Receiving, now: float) -> bool:
        return not receiving.is_held_up and now - self._messages[receiving].since > SILENCE_S
