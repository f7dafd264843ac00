"""Tensors that lie one after the other in one run of bytes."""

from __future__ import annotations

from collections.abc import Iterable

from core.inference.tensors import Shape
from core.memo import Memo

# Name, datatype, shape, first byte, byte after the last one.
LayoutEntry = tuple[str, str, Shape, int, int]


class TensorLayout:
    """What each of the tensors is, and where. `size` is that of the run, in bytes.

    `layout_of` gives one object for all that look alike, compared by identity: what was found out about the tensors of
    one request need not be found out again, and a batch of like ones is one block.
    """

    __slots__ = ("entries", "size")

    def __init__(self, entries: tuple[LayoutEntry, ...]) -> None:
        self.entries = entries
        self.size = entries[-1][4] if entries else 0


_remembered: Memo[tuple[LayoutEntry, ...], TensorLayout] = Memo(1024)


def layout_of(tensors: Iterable[tuple[str, str, Shape, int]]) -> TensorLayout:
    """The one layout of tensors without anything between them, given as name, datatype, shape and size in bytes.

    Any thread; of two that were made at once both serve.
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
