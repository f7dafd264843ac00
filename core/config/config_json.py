"""A model configuration as JSON.

Unlike protobuf's own JSON it keeps the order of declaration and prints scalars that have their default value. It prints
64-bit integers as numbers, except for the few fields that Triton forgets.
Source: docs/spec/model-config.md introduction; recorded `GET …/config` answers of Triton 2.51.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from google.protobuf.message import Message

Json = dict[str, Any]

# 64-bit fields that Triton leaves in protobuf's JSON form, which is a string.
_STRING_FIELDS = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    }
)


def config_json(message: Message) -> Json:
    """Plain JSON values in Triton's order, ready for a JSON encoder."""
    rendered: Json = {}
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if isinstance(value, MutableMapping):
            entry = field.message_type.fields_by_name["value"]
            rendered[field.name] = {str(key): _value(entry, value[key]) for key in sorted(value)}
        elif isinstance(value, MutableSequence):
            rendered[field.name] = [_value(field, item) for item in value]
        else:
            rendered[field.name] = _value(field, value)
    return rendered


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return config_json(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if field.full_name in _STRING_FIELDS:
        return str(value)
    if isinstance(value, float):
        return _number(field, value)
    return value


def _number(field: Any, value: float) -> float | str:
    """A float as protobuf's JSON has it: the shortest digits that a float32 needs, names for what JSON cannot write."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if field.type == field.TYPE_FLOAT:
        return float(str(np.float32(value)))
    return value
