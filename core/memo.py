"""A dict of bounded size."""

from __future__ import annotations

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
