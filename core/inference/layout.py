"""The places of tensors in one run of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from core.inference.tensors import Shape
from core.memo import Memo

# Name, datatype, shape, first byte, byte after the last one.
LayoutEntry = tuple[str, str, Shape, int, int]


class TensorLayout:
    """The name, datatype, shape and place of each tensor. `size` is the size of the run in bytes.

    `layout_of` returns the same object for equal layouts, so that layouts are compared by identity: results for one
    request are found again for the next, and a batch of requests with one layout is one block.
    """

    __slots__ = ("entries", "size")

    def __init__(self, entries: tuple[LayoutEntry, ...]) -> None:
        self.entries = entries
        self.size = entries[-1][4] if entries else 0


_remembered: Final[Memo[tuple[LayoutEntry, ...], TensorLayout]] = Memo(1024)


def layout_of(tensors: Iterable[tuple[str, str, Shape, int]]) -> TensorLayout:
    """The layout of tensors without gaps between them, given as name, datatype, shape and size in bytes.

    Any thread. Two threads may each make a layout of the same tensors; both are valid.
    """
    entries: list[LayoutEntry] = []
    start = 0
    for name, datatype, shape, size in tensors:
        entries.append((name, datatype, shape, start, start + size))
        start += size
    key = tuple(entries)
    layout = _remembered.get(key)
    if layout is None:
        layout = _remembered[key] = TensorLayout(key)
    return layout
