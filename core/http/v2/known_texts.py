"""What was learnt of texts that may come again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

_AT_MOST = 512
# So many chances to learn are let pass after a time in which not half as much came again as was learnt.
_PAUSE = 16 * _AT_MOST


class KnownTexts(Generic[T]):
    """At most 512; when it is full it starts anew. Any thread: a lost entry, or count, is only learnt again.

    To learn a text costs more than twice as much as to parse it. So that those who never repeat themselves do not pay
    for it each time, it rests when it was filled without use.
    """

    __slots__ = ("_hits", "_known", "_pause")

    def __init__(self) -> None:
        self._known: dict[Hashable, T] = {}
        self._hits = 0
        self._pause = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Hashable) -> T | None:
        found = self._known.get(key)
        if found is not None:
            self._hits += 1
        return found

    def is_learning(self) -> bool:
        """Whether one more is wanted. Asked once for each that could be learnt."""
        if self._pause:
            self._pause -= 1
            return False
        return True

    def put(self, key: Hashable, known: T) -> None:
        if len(self._known) >= _AT_MOST:
            if 2 * self._hits < _AT_MOST:
                self._pause = _PAUSE
            self._known.clear()
            self._hits = 0
        self._known[key] = known
