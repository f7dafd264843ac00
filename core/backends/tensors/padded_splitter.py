"""Splits the results of a padded batch: each request gets its own rows and, where an output has it, its own length.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.backends.tensors.padding_gatherer import lengths_of
from core.backends.tensors.splitter import Splitter
from core.config.model_spec import BucketSpec, ModelSpec
from core.errors import BackendFailed
from core.inference.request import InferenceRequest
from core.inference.response import Outputs
from core.inference.tensors import Array, shape_text


class PaddedSplitter(Splitter):
    """A Splitter for a model with `buckets`.

    `axes` has the dimensions of each output that are as long as the padded inputs. They are cut back to the length of
    the request; those of other outputs stay as the model made them.
    """

    def __init__(self, spec: ModelSpec, buckets: BucketSpec, axes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(spec, {})
        self._buckets = buckets
        self._axes = axes

    def split(
        self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int], results: Sequence[Array], total: int
    ) -> Sequence[Outputs]:
        """As that of Splitter; `total` are the real items."""
        buckets = self._buckets
        rows = buckets.rows(total)
        if rows > total:
            results = [self._real_rows(name, result, rows, total) for name, result in self._named(results)]
        if self._axes:
            lengths = lengths_of(requests, buckets)
            padded = buckets.length(max(lengths))
            if min(lengths) < padded:
                return self._split_by_length(requests, batch_sizes, lengths, results, padded)
        return super().split(requests, batch_sizes, results, total)

    def _split_by_length(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        lengths: Sequence[int],
        results: Sequence[Array],
        padded: int,
    ) -> list[Outputs]:
        """The outputs of requests whose shapes differ, each request by itself."""
        answers: list[Outputs] = []
        start = 0
        for request, size, length in zip(requests, batch_sizes, lengths, strict=True):
            own = [self._own(name, result, start, size, length, padded) for name, result in self._named(results)]
            answers += super().split((request,), (size,), own, size)
            start += size
        return answers

    def _own(self, name: str, result: Array, start: int, size: int, length: int, padded: int) -> Array:
        axes = self._axes.get(name, ())
        for axis in axes:
            if axis >= result.ndim or result.shape[axis] != padded:
                raise BackendFailed(
                    f"output '{name}' of '{self._spec.name}' has shape {shape_text(result.shape)} for inputs that were "
                    f"padded to the length {padded}, so that it cannot be cut to the length of its request",
                    hint="remove it from LENGTH_OUTPUTS in the model's configuration, or name the dimension otherwise "
                    "in the graph",
                    model=self._spec.name,
                )
        index = [slice(None)] * result.ndim
        if self._batching:
            index[0] = slice(start, start + size)
        for axis in axes:
            index[axis] = slice(length)
        return np.ascontiguousarray(result[tuple(index)])

    def _real_rows(self, name: str, result: Array, rows: int, total: int) -> Array:
        if result.shape[:1] != (rows,):
            raise self._wrong_batch(name, result.shape, rows)
        return result[:total]

    def _named(self, results: Sequence[Array]) -> list[tuple[str, Array]]:
        return [(name, result) for (_, name, _), result in zip(self._outputs, results, strict=True)]
