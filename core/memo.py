"""Dicts of bounded size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """Remembers what was computed for a key; starts empty again when it is full. Any thread: a lost entry costs a
    second computation.

    Clients repeat themselves, and a client that does not must not fill the memory. Reading costs what it costs in a
    dict, which an order of use would not.
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.limit:
            self.clear()
        super().__setitem__(key, value)


_MOST_TEXTS = 512
# After a time in which less than half as many texts arrived again as were learned, this many chances to learn pass.
_PAUSE = 16 * _MOST_TEXTS


class AdaptiveMemo(Memo[Hashable, V]):
    """A memo that stops learning for a while when it was filled without use. Its users count `hits`.

    Learning a text costs more than twice as much as parsing it, and clients that never repeat themselves must not pay
    for it each time. Any thread: a lost entry, or count, is only learned again.
    """

    __slots__ = ("_pause", "hits")

    def __init__(self) -> None:
        super().__init__(_MOST_TEXTS)
        self.hits = 0
        self._pause = 0

    def is_learning(self) -> bool:
        """Return whether to learn one more text. Call it once for each text that could be learned."""
        if self._pause:
            self._pause -= 1
            return False
        return True

    def __setitem__(self, key: Hashable, value: V) -> None:
        if len(self) >= self.limit:
            if 2 * self.hits < self.limit:
                self._pause = _PAUSE
            self.hits = 0
        super().__setitem__(key, value)
