"""Finds the dimensions of outputs that have the name of the inputs' length in the graph.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from typing import Any

from core.config.model_spec import BucketSpec


def named_axes(session: Any, buckets: BucketSpec) -> dict[str, list[int]]:
    """The dimensions of each output with the name that the padded dimension of an input has; without names, none."""
    inputs = {argument.name: argument.shape for argument in session.get_inputs()}
    given = {inputs[name][axis] for name, axis in buckets.axes.items() if name in inputs}
    names = {name for name in given if isinstance(name, str)}
    return {
        argument.name: [axis for axis, dim in enumerate(argument.shape) if dim in names]
        for argument in session.get_outputs()
    }
