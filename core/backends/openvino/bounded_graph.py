"""Tells whether the values of the inputs can make a graph run longer.

Some operators repeat a part of the graph, or choose one, or make a tensor whose size is a value.
Source: OpenVINO's operation sets.
"""

from __future__ import annotations

from typing import Any

_CONSTANT = "Constant"
_REPEATING = frozenset({"If", "Loop", "TensorIterator"})
# What they make is as large as an input says, unless that is a constant of the graph. With the first of these inputs.
_SIZED = {
    "AdaptiveAvgPool": 1,
    "AdaptiveMaxPool": 1,
    "Broadcast": 1,
    "Col2Im": 1,
    "DFT": 1,
    "Eye": 0,
    "IDFT": 1,
    "Interpolate": 1,
    "IRDFT": 1,
    "Multinomial": 1,
    "NonMaxSuppression": 2,
    "OneHot": 1,
    "Pad": 1,
    "RandomUniform": 0,
    "Range": 0,
    "RDFT": 1,
    "STFT": 2,
    "Tile": 1,
}


def has_bounded_graph(model: Any) -> bool:
    """Whether the running time of a graph depends on the shapes of its inputs alone."""
    return not any(_is_unbounded(node) for node in model.get_ops())


def _is_unbounded(node: Any) -> bool:
    kind = node.get_type_name()
    if kind in _REPEATING:
        return True
    first = _SIZED.get(kind)
    sizes = () if first is None else range(first, node.get_input_size())
    return any(node.input_value(index).get_node().get_type_name() != _CONSTANT for index in sizes)
