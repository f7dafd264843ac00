"""Converts arrays with their own types and shapes to the inputs of a model."""

from __future__ import annotations

import numpy as np

from core.config.model_spec import InputSpec, ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.conversion import as_datatype, string_array
from core.http.payloads.error_location import ErrorLocation, mismatch
from core.http.payloads.instance_signature import check_names
from core.http.payloads.payload import DecodedPayload
from core.inference.tensors import BYTES, Array, Shape, shape_text


def decode_arrays(arrays: dict[str, Array], spec: ModelSpec) -> DecodedPayload:
    """Arrays of shape `[N, *dims]` are a batch, or N instances of a model that does not batch.

    For a model that does not batch all arrays may also have the shape `dims`: then they are one request.
    Raises InvalidRequest that names the input, its shape or its element.
    """
    check_names(arrays, spec, "the arrays")
    whole = spec.max_batch_size == 0 and all(a.ndim == len(spec.inputs[name].dims) for name, a in arrays.items())
    typed: dict[str, Array] = {}
    for name, array in arrays.items():
        expected = spec.inputs[name]
        wanted = expected.dims if whole else (-1, *expected.dims)
        if not fits_dims(array.shape, wanted):
            also = f" or {shape_text(expected.dims)}" if spec.max_batch_size == 0 and not whole else ""
            raise mismatch(f"input '{name}'", f"shape {shape_text(wanted)}{also}", shape_text(array.shape))
        typed[name] = _typed(array, expected, ErrorLocation(None, name))
    if whole:
        return DecodedPayload(arrays=typed, count=None, stacked=False)
    count = common_count(typed)
    for name, array in typed.items():
        if not array.size:  # no content backs the number of rows, and each row would be a request
            raise InvalidRequest(f"input '{name}' has {count} rows without an element: expected at least one in each")
    return DecodedPayload(arrays=typed, count=count, stacked=spec.max_batch_size > 0)


def fits_dims(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, length) for length, dim in zip(shape, dims, strict=True))


def common_count(arrays: dict[str, Array]) -> int:
    """The number of rows of all arrays. Raises InvalidRequest if they differ, or if there are no rows."""
    (first, count), *rest = [(name, len(array)) for name, array in arrays.items()]
    for name, length in rest:
        if length != count:
            raise InvalidRequest(f"input '{name}' has {length} rows, input '{first}' has {count}: expected the same")
    if not count:
        raise InvalidRequest(f"input '{first}' has no rows: expected at least one")
    return count


def _typed(array: Array, expected: InputSpec, location: ErrorLocation) -> Array:
    if array.dtype.kind in "SU":
        if expected.datatype is not BYTES:
            raise mismatch(location.at(), f"elements of {expected.datatype.name}", "strings")
        return string_array(array)
    return np.ascontiguousarray(as_datatype(array, expected.datatype, location)).reshape(array.shape)
