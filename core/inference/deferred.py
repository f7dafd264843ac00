"""Calls that a thread makes after it has submitted all the requests it has."""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[[], None]
Defer = Callable[[Call], None]


class Deferred:
    """Calls to make later; a call that was added several times is made once. One thread only."""

    __slots__ = ("_calls", "add")

    add: Defer

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self.add = self._calls.add

    def run(self) -> None:
        """Make the calls, also those that are added meanwhile."""
        while self._calls:
            self._calls.pop()()
