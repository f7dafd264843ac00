"""A model configuration as the config API prints it.

Unlike protobuf's own JSON it keeps the order of declaration, prints scalars that have their default value, and prints
64-bit integers as numbers, but for the few fields that Triton forgets.
Source: docs/spec/model-config.md introduction; recorded `GET …/config` answers of Triton 2.51.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, MutableSequence
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from core.config.schema import ModelConfig

Json = dict[str, Any]

# 64-bit fields that Triton leaves in protobuf's JSON form, which is a string.
_STRING_FIELDS = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    }
)


def config_json(config: ModelConfig) -> Json:
    """`config` as plain JSON values, in Triton's order, ready for a JSON encoder."""
    return _message(config)


def _message(message: Message) -> Json:
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
        return _message(value)
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
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return float(str(np.float32(value)))
    return value
