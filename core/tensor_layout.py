"""Tensors that lie one after the other in one run of bytes."""

from __future__ import annotations

from core.tensors import Shape

# Name, datatype, shape, first byte, byte after the last one.
LayoutEntry = tuple[str, str, Shape, int, int]

_MOST_REMEMBERED = 1024


class TensorLayout:
    """What each of the tensors is, and where. `size` is that of the run, in bytes.

    There is one object for all that look alike, compared by identity: what was found out about the tensors of one
    request need not be found out again, and a batch of like ones is one block.
    """

    __slots__ = ("entries", "size")

    def __init__(self, entries: tuple[LayoutEntry, ...]) -> None:
        self.entries = entries
        self.size = entries[-1][4] if entries else 0

    @staticmethod
    def of(entries: tuple[LayoutEntry, ...]) -> TensorLayout:
        """The one object for these entries. Any thread; of two that were made at once both serve."""
        layout = _remembered.get(entries)
        if layout is None:
            if len(_remembered) >= _MOST_REMEMBERED:
                _remembered.clear()
            layout = _remembered[entries] = TensorLayout(entries)
        return layout


_remembered: dict[tuple[LayoutEntry, ...], TensorLayout] = {}


def layout_of(tensors: list[tuple[str, str, Shape, int]]) -> TensorLayout:
    """The layout of tensors without anything between them, given as name, datatype, shape and size in bytes."""
    entries: list[LayoutEntry] = []
    start = 0
    for name, datatype, shape, size in tensors:
        entries.append((name, datatype, shape, start, start + size))
        start += size
    return TensorLayout.of(tuple(entries))
