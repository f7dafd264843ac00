"""Tensors whose bytes lie one after the other in one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from core.inference.layout import TensorLayout
from core.inference.tensors import Shape

T_co = TypeVar("T_co", covariant=True)


class Cut(Protocol[T_co]):
    """Makes a tensor of its name, datatype, shape and bytes."""

    def __call__(self, name: str, datatype: str, shape: Shape, content: memoryview, /) -> T_co: ...


class PackedTensors(Generic[T_co]):
    """The run and its layout, which can be indexed and iterated over like a list of tensors.

    The tensors are cut out of the run on first use: on most of a request's way nobody needs them. One thread at a time.
    """

    __slots__ = ("_tensors", "content", "layout")

    cut: Cut[T_co]

    def __init__(self, layout: TensorLayout, content: memoryview) -> None:
        self.layout = layout
        self.content = content
        self._tensors: list[T_co] | None = None

    def __len__(self) -> int:
        return len(self.layout.entries)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._list())

    def __getitem__(self, index: int) -> T_co:
        return self._list()[index]

    def _list(self) -> list[T_co]:
        tensors = self._tensors
        if tensors is None:
            content, cut = self.content, self.cut
            tensors = self._tensors = [
                cut(name, datatype, shape, content[start:end])
                for name, datatype, shape, start, end in self.layout.entries
            ]
        return tensors
