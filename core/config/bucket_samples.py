"""The warmup of batch buckets: one sample for each, so that all their shapes have run before the version is ready.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.config.model_spec import BucketSpec, InputSpec, ModelSpec
from core.config.warmup import WarmupInput, WarmupSample
from core.inference.tensors import BYTES, Array, bytes_array, element_count


def bucket_samples(spec: ModelSpec, samples: Sequence[WarmupSample]) -> list[WarmupSample]:
    """One sample for each combination of sizes, the largest first, so that memory is allocated once.

    The values are those of the first of `samples`, the warmup samples of the configuration, repeated to the length;
    without one, zeros and empty strings.
    """
    buckets = spec.buckets
    if buckets is None:
        return []
    values = {given.name: given.array for given in samples[0].inputs} if samples else {}
    return [
        _sample(spec, buckets, values, batch_size, length)
        for batch_size in reversed(buckets.batch_sizes or (1,))
        for length in reversed(buckets.lengths or (0,))
    ]


def _sample(
    spec: ModelSpec, buckets: BucketSpec, values: Mapping[str, Array], batch_size: int, length: int
) -> WarmupSample:
    parts = [f"batch size {batch_size}"] if buckets.batch_sizes else []
    parts += [f"length {length}"] if length else []
    batch_axes = 1 if spec.max_batch_size > 0 else 0
    inputs = []
    for name, given in spec.inputs.items():
        if given.optional:
            continue
        axis = buckets.axes[name] - batch_axes if name in buckets.axes else None
        array = values[name] if name in values else _zeros(given)
        if axis is not None:
            array = np.take(array, np.arange(length) % max(array.shape[axis], 1), axis)
        inputs.append(WarmupInput(name, given.datatype, array))
    return WarmupSample(f"bucket of {', '.join(parts)}", batch_size, 1, tuple(inputs))


def _zeros(given: InputSpec) -> Array:
    """One item, with 1 for each variable dimension."""
    dims = tuple(1 if dim == -1 else dim for dim in given.dims)
    if given.datatype is BYTES:
        return bytes_array([b""] * element_count(dims), dims)
    return np.zeros(dims, given.datatype.dtype)
