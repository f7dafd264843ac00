"""The texts of requests that clients repeat, up to a bound."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from core.memo import Memo

T = TypeVar("T")

_MOST_TEXTS = 512
# After a time in which less than half as many texts arrived again as were learned, this many chances to learn pass.
_PAUSE = 16 * _MOST_TEXTS


class KnownTexts(Memo[Hashable, T]):
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
        """Whether one more text is wanted. Asked once for each text that could be learned."""
        if self._pause:
            self._pause -= 1
            return False
        return True

    def __setitem__(self, key: Hashable, known: T) -> None:
        if len(self) >= self.limit:
            if 2 * self.hits < self.limit:
                self._pause = _PAUSE
            self.hits = 0
        super().__setitem__(key, known)
