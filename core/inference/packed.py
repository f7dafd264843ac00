"""Tensors whose bytes lie one after the other in one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from core.inference.layout import TensorLayout

T_co = TypeVar("T_co", covariant=True)


class PackedTensors(Generic[T_co]):
    """The run and its layout, which can be indexed and iterated over like a list of tensors.

    A subclass cuts the tensors out of the run, on first use: on most of a request's way nobody needs them. One thread
    at a time.
    """

    __slots__ = ("_tensors", "content", "layout")

    def __init__(self, layout: TensorLayout, content: memoryview) -> None:
        self.layout = layout
        self.content = content
        self._tensors: list[T_co] | None = None

    def __len__(self) -> int:
        return len(self.layout.entries)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._list())

    def __reversed__(self) -> Iterator[T_co]:
        return reversed(self._list())

    def __getitem__(self, index: int) -> T_co:
        return self._list()[index]

    def _list(self) -> list[T_co]:
        tensors = self._tensors
        if tensors is None:
            tensors = self._tensors = self._cut()
        return tensors

    def _cut(self) -> list[T_co]:
        raise NotImplementedError
