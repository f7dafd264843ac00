"""The batch dimension of a tensor that passes between a model with batches and one without.

Source: docs/spec/schedulers.md section 3.5, "Batch adaptation".
"""

from __future__ import annotations

from typing import NamedTuple

from core.config.ensemble.composition import may_match
from core.inference.tensors import Shape


class ShapeChange(NamedTuple):
    """A tensor gains or loses a first dimension of 1, unless it already fits `dims`, those of its reader."""

    gains: bool
    dims: Shape

    def apply(self, shape: Shape) -> Shape:
        fits = may_match(self.dims, shape)
        if self.gains:
            return (1, *shape) if fits else shape
        return shape[1:] if not fits and shape[:1] == (1,) else shape


def shape_change(has_batch: bool, takes_batch: bool, dims: Shape) -> ShapeChange | None:
    """The change between a writer and a reader with `dims`; None if both have a batch dimension, or neither has."""
    return None if has_batch == takes_batch else ShapeChange(takes_batch, dims)
