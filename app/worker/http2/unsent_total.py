"""What waits to be sent on all connections together."""

from __future__ import annotations


class UnsentTotal:
    """Counts `size` bytes of the connections that share it. Hub thread only."""

    __slots__ = ("_limit", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0

    def is_exceeded(self, times: int = 1) -> bool:
        """Whether `size` exceeds `times` the limit."""
        return self.size > times * self._limit
