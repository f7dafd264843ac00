"""Ends calls whose client stops in the middle of a message, which may hold much memory.

Between two messages a client may wait as long as it likes.
"""

from __future__ import annotations

from typing import Protocol

from core.waiting.deadlines import Deadlines

LIMIT_S = 60.0


class Receiving(Protocol):
    """It must be hashable. `received` is how many bytes of the message have arrived."""

    @property
    def received(self) -> int: ...

    @property
    def is_held_up(self) -> bool:
        """Whether it is this server that does not let the client go on."""

    def stall(self) -> None:
        """Nothing has arrived for LIMIT_S seconds at least."""


class StalledMessages:
    """Looks once in LIMIT_S at the messages that have not arrived whole. On the hub's thread."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._seen: dict[Receiving, int] = {}
        self._is_looking = False

    def add(self, receiving: Receiving) -> None:
        """A part of a message has arrived."""
        if receiving not in self._seen:
            self._seen[receiving] = -1
            self._look_later()

    def remove(self, receiving: Receiving) -> None:
        """All of it has arrived, or nobody waits for it."""
        self._seen.pop(receiving, None)

    def expire(self) -> None:
        """Look."""
        self._is_looking = False
        for receiving, seen in list(self._seen.items()):
            received = receiving.received
            if received != seen or receiving.is_held_up:
                self._seen[receiving] = received
            else:
                receiving.stall()
        self._look_later()

    def _look_later(self) -> None:
        if self._seen and not self._is_looking:
            self._is_looking = True
            self._deadlines.add(LIMIT_S, self)
