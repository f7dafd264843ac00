"""Tensors on their way from a request or a step to the next steps and to the client: renamed, never encoded.

The outputs of a small step are one run of bytes. If a step or the client takes such a run, or a part of it, that is
passed on as it is, under other names; nothing is cut out of it. The renamed layouts are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from core.inference.layout import LayoutEntry, TensorLayout, layout_of
from core.inference.packed import PackedTensors
from core.inference.request import Inputs, InputTensor, PackedInputs
from core.inference.response import Outputs, OutputTensor, PackedOutputs, ReceivedOutput
from core.inference.tensors import Array, Shape
from core.memo import Memo
from core.scheduling.ensemble.shape_change import ShapeChange

# What the steps have given so far, by their indices, and at the end what the request has given: its index is -1.
Sources = list[Inputs | Outputs | None]

_MOST_RENAMED = 64


class Taken(NamedTuple):
    """A tensor for a step or for the client: `name` there, `original` where `source` gives it."""

    name: str
    source: int
    original: str
    change: ShapeChange | None


class Passing:
    """Takes the tensors `taken` from their sources, for one step or for the client. Any thread."""

    __slots__ = ("_renamed", "_source", "_taken")

    def __init__(self, taken: Sequence[Taken]) -> None:
        self._taken = tuple(taken)
        # The only source, if it may be passed on as a run, and what comes of it by its layout.
        sources = {each.source for each in taken}
        is_plain = len(sources) == 1 and all(each.change is None for each in taken)
        self._source = sources.pop() if is_plain else None
        self._renamed: Memo[TensorLayout, tuple[TensorLayout, int]] = Memo(_MOST_RENAMED)

    def inputs(self, sources: Sources) -> Inputs:
        """The tensors as inputs of the step, without those that were left out."""
        run = self._run(sources)
        if run is not None:
            return PackedInputs(*run)
        return [InputTensor(name, datatype, shape, content) for name, datatype, shape, content in self._parts(sources)]

    def outputs(self, sources: Sources) -> Outputs:
        """The tensors as outputs of the ensemble, without those that were left out."""
        run = self._run(sources)
        if run is not None:
            return PackedOutputs(*run)
        outputs: list[OutputTensor] = []
        for name, datatype, shape, content in self._parts(sources):
            if isinstance(content, memoryview):
                outputs.append(ReceivedOutput(name, datatype, shape, content))
            else:
                outputs.append(OutputTensor(name, datatype, shape, content))
        return outputs

    def _run(self, sources: Sources) -> tuple[TensorLayout, memoryview] | None:
        """The tensors as a part of the run of bytes that their only source is; None if it is not that."""
        if self._source is None:
            return None
        packed = sources[self._source]
        if not isinstance(packed, PackedTensors):
            return None
        layout = packed.layout
        renamed = self._renamed.get(layout)
        if renamed is None:
            renamed = self._renamed[layout] = self._rename(layout)
        made, start = renamed
        if start < 0:
            return None
        return made, packed.content if made.size == layout.size else packed.content[start : start + made.size]

    def _rename(self, layout: TensorLayout) -> tuple[TensorLayout, int]:
        """The layout of the tensors and its first byte in a run of `layout`; -1 if they are not neighbours there."""
        entries = {entry[0]: entry for entry in layout.entries}
        found: list[tuple[LayoutEntry, str]] = []
        for name, _, original, _ in self._taken:
            if original not in entries:
                return _NO_RUN
            found.append((entries[original], name))
        found.sort(key=lambda each: each[0][3])
        if any(entry[4] != after[3] for (entry, _), (after, _) in pairwise(found)):
            return _NO_RUN
        made = layout_of([(name, datatype, shape, end - start) for (_, datatype, shape, start, end), name in found])
        return made, found[0][0][3]

    def _parts(self, sources: Sources) -> list[tuple[str, str, Shape, memoryview | Array]]:
        """Name, datatype, shape and content of each tensor that was not left out."""
        named: dict[int, dict[str, InputTensor | OutputTensor]] = {}
        parts: list[tuple[str, str, Shape, memoryview | Array]] = []
        for name, source, original, change in self._taken:
            if source not in named:
                given = sources[source]
                named[source] = {tensor.name: tensor for tensor in given} if given is not None else {}
            tensor = named[source].get(original)
            if tensor is None:
                continue
            if isinstance(tensor, ReceivedOutput):  # it may never need an array
                parts.append((name, tensor.datatype, _changed(tensor.shape, change), tensor.content()))
            else:
                array = tensor.array
                shape = _changed(array.shape, change)
                parts.append((name, tensor.datatype, shape, array.reshape(shape)))
        return parts


_NO_RUN: tuple[TensorLayout, int] = (TensorLayout(()), -1)


def _changed(shape: Shape, change: ShapeChange | None) -> Shape:
    return shape if change is None else change.apply(shape)
