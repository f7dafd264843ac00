"""Gathers the inputs of a batch into tensors of the shapes of its bucket.

Rows are added as copies of the last real row, because that is a row which the model is known to take; lengths are
filled up with the pad value of their input.
Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.backends.tensors.batch_inputs import BatchInputSpec
from core.backends.tensors.gatherer import Gatherer, arrays_of
from core.backends.tensors.staging_buffer import OnBuffer
from core.config.buckets import pad_value
from core.config.model_spec import BucketSpec, ModelSpec
from core.inference.request import InferenceRequest
from core.inference.tensors import Array
from core.observability.bucket_statistics import BucketUse


class PaddingGatherer(Gatherer):
    """A Gatherer for a model with `buckets`. `use` is the bucket of the latest feed, with its padding."""

    def __init__(
        self,
        spec: ModelSpec,
        buckets: BucketSpec,
        *,
        scalars: frozenset[str] = frozenset(),
        batch_inputs: Sequence[BatchInputSpec] = (),
        on_buffer: OnBuffer | None = None,
    ) -> None:
        super().__init__(spec, scalars=scalars, batch_inputs=batch_inputs, on_buffer=on_buffer)
        self.use = BucketUse(0, 0, 0, 0)
        self._buckets = buckets
        self._batching = spec.max_batch_size > 0
        self._pad_values = {
            name: pad_value(spec.inputs[name].datatype, buckets.pad_values.get(name, "")) for name in buckets.axes
        }

    def gather(self, requests: Sequence[InferenceRequest], total: int) -> dict[str, Array]:
        """As that of Gatherer, padded to the bucket of the batch."""
        buckets = self._buckets
        rows = buckets.rows(total)
        length = buckets.length(max(lengths_of(requests, buckets))) if buckets.lengths else 0
        feed: dict[str, Array] = {}
        elements = made = 0
        for position, tensor in enumerate(requests[0].inputs):
            name = tensor.name
            arrays = arrays_of(requests, position, name)
            feed[name] = array = self._padded(name, arrays, rows, length)
            elements += sum([each.size for each in arrays])
            made += array.size
        for batch_input in self._batch_inputs:
            by_row = batch_input.array(requests)
            if rows > total:
                table = by_row.reshape(total, -1)
                table = np.concatenate([table, np.repeat(table[-1:], rows - total, axis=0)])
                by_row = table.reshape(rows, *by_row.shape[1:]) if by_row.ndim > 1 else table.reshape(-1)
            for name in batch_input.target_names:
                feed[name] = by_row
        self.use = BucketUse(rows if buckets.batch_sizes else 0, length, elements, made - elements)
        return feed

    def _padded(self, name: str, arrays: list[Array], rows: int, length: int) -> Array:
        first = arrays[0]
        if name in self._scalars:
            return first.reshape(())
        axis = self._buckets.axes.get(name)
        shape = list(first.shape)
        if self._batching:
            shape[0] = rows
        if axis is not None:
            shape[axis] = length
        if len(arrays) == 1 and list(first.shape) == shape:
            return first
        buffer = self._buffers.get(name)
        padded = np.empty(shape, object) if buffer is None else buffer.view(tuple(shape))
        end = 0
        for array in arrays:
            start, end = end, end + len(array)
            part = padded[start:end] if self._batching else padded
            try:
                if axis is None:
                    part[...] = array
                else:
                    part[_along(axis, slice(array.shape[axis]))] = array
                    part[_along(axis, slice(array.shape[axis], None))] = self._pad_values[name]
            except ValueError as exc:
                raise self._misfit(name, exc) from exc
        if self._batching and end < rows:
            padded[end:] = padded[end - 1]
        return padded


def lengths_of(requests: Sequence[InferenceRequest], buckets: BucketSpec) -> list[int]:
    """The length of each request: that of its longest padded input, 0 if it has none of them."""
    axes = buckets.axes
    return [
        max([t.array.shape[axes[t.name]] for t in request.inputs if t.name in axes], default=0) for request in requests
    ]


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    """The index of `part` along `axis`."""
    return (*[slice(None)] * axis, part)
