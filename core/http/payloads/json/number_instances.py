"""Instances that are plain numbers, for a model with one input."""

from __future__ import annotations

from core.config.model_spec import ModelSpec
from core.http.payloads.arrays.inputs import fits_dims
from core.http.payloads.conversion import as_datatype
from core.http.payloads.error_location import ErrorLocation, RowName
from core.http.payloads.instance_signature import instance_signature
from core.http.payloads.json.number_array import wide_kind
from core.http.payloads.payload import DecodedPayload
from core.inference.tensors import Array


def only_numbers(spec: ModelSpec) -> str | None:
    """The wide kind of the only input; None if there are several inputs, or if its datatype is not numeric."""
    datatypes = [i.datatype for i in spec.inputs.values()]
    return wide_kind(datatypes[0]) if len(datatypes) == 1 else None


def decode_numbers(wide: Array, spec: ModelSpec, row_name: RowName) -> DecodedPayload | None:
    """The payload of `wide`, whose rows are instances of the only input; None if they do not fit its shape."""
    (name,) = spec.inputs
    signature = instance_signature(spec, wide.ndim - 1)
    expected = signature.inputs[name]
    if wide.ndim == 1 and all(dim == 1 for dim in expected.dims):
        wide = wide.reshape(-1, *expected.dims)
    if not fits_dims(wide.shape[1:], expected.dims):
        return None
    array = as_datatype(wide, expected.datatype, ErrorLocation(row_name, name))
    return DecodedPayload(arrays={name: array}, count=len(array), stacked=signature.stacked)


def is_one_instance(rank: int, spec: ModelSpec) -> bool:
    """Whether the nesting, `rank`, of a bare array shows that it is one instance and not a list of instances."""
    if len(spec.inputs) != 1:
        return False
    (row,) = instance_signature(spec, None).inputs.values()
    dims = row.dims
    return rank == len(dims) and not all(dim == 1 for dim in dims)
