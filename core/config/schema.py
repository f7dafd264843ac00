"""Triton's ModelConfig message, and its written forms: `config.pbtxt`, a load request's JSON, an answer's JSON.

Source: Triton's `model_config.proto`; docs/spec/model-config.md introduction; docs/spec/repository.md section 1.6.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import MutableMapping, MutableSequence
from typing import Any, cast

import numpy as np
from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from trident.core.config.problem import InvalidModelConfig, Problem, nearest
from trident.core.errors import ConfigInvalid
from trident.core.inference.tensors import BY_CONFIG_NUMBER, Datatype, Shape
from trident.core.protos.model_config_pb2 import (
    BatchInput,
    BatchOutput,
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelQueuePolicy,
    ModelSequenceBatching,
    ModelWarmup,
)
from trident.core.protos.pool import pool

__all__ = [
    "BatchInput",
    "BatchOutput",
    "DataType",
    "ModelConfig",
    "ModelDynamicBatching",
    "ModelInput",
    "ModelInstanceGroup",
    "ModelOutput",
    "ModelQueuePolicy",
    "ModelSequenceBatching",
    "ModelWarmup",
    "copy_of",
    "core_config",
    "data_type_of",
    "datatype_of",
    "model_dims",
]


def copy_of(config: ModelConfig) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def core_config(config: ModelConfig) -> ModelConfig:
    """A copy without the parts that can change while a version serves, and that decide no answer."""
    core = copy_of(config)
    core.ClearField("instance_group")
    core.ClearField("version_policy")
    return core


def datatype_of(data_type: int) -> Datatype | None:
    """The row of the datatype table for a `data_type` field; None for TYPE_INVALID and unknown numbers."""
    return BY_CONFIG_NUMBER.get(data_type)


def data_type_of(row: Datatype | None) -> DataType:
    return cast("DataType", row.config_number if row else 0)


def model_dims(entry: ModelInput | ModelOutput) -> Shape:
    """The dimensions that the model itself has for a tensor: its `reshape`, or its `dims` without any."""
    return tuple(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


# --- written forms

# The parts of a text that Triton's protobuf, in C++, reads and Python's does not: a blank behind a minus, and zeros
# before a boolean. Strings and comments come first, because they hide such parts.
_PART = re.compile(
    r"""\#[^\n]*
    |"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?
    |[A-Za-z_]\w*
    |(?P<number>\.?[0-9](?:[eE][+-]|[\w.])*)
    |(?P<minus>-(?:\s|\#[^\n]*\n)+(?=[\w.]))""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ZERO_OR_ONE = re.compile(r"(?:0+|0[xX]0*)([01])")
# The prefix `LINE:COLUMN : 'the source line': ` of an error; the source line may itself contain quotes and colons.
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?", re.DOTALL)
# Strings come first, because a # in a string does not begin a comment. A string without an end matches too; otherwise
# a line of quotation marks would be scanned to its end from each of them.
_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|(?P<comment>\#[^\n]*)""")
_STRANGE_BYTE = re.compile("[\udc80-\udcff]")  # how Python represents a byte that is not UTF-8
_FORM = "write protobuf's text, not JSON or YAML: max_batch_size: 8  dims: [ 3, 4 ]  dynamic_batching { }"
_LONGEST_REASON = 1000  # characters; a reason quotes names and numbers of any length
_UNKNOWN_FIELD = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>[^"]*)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named (?P<name>\w+)')
_INVALID_JSON_VALUE = re.compile(r"Invalid enum value (?P<name>\w+) for enum type (?P<type>[\w.]+)")
_FIELDS_LISTED = re.compile(r"\.?\s*Available Fields\(except extensions\).*", re.DOTALL)


def parse_model_config(text: str, path: str) -> ModelConfig:
    """Parse `text`, which is in protobuf's text format and was read from the file `path`.

    Raises InvalidModelConfig with Triton's `failed to read text proto from PATH`, the position and protobuf's reason.
    """
    try:
        return text_format.Parse(_PART.sub(_as_in_cpp, text), ModelConfig())
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        reason = _shortened(_POSITION.sub("", str(error), count=1))
        message = f"failed to read text proto from {path}: {line}:{column}: {reason}"
        # Not chained: protobuf's text repeats the source line, which may be the whole file.
        raise InvalidModelConfig([Problem(f"{path}:{line}:{column}", message, _hint(reason) or _FORM)]) from None


def _as_in_cpp(part: re.Match[str]) -> str:
    """Write a part of a configuration so that Python's protobuf reads what C++'s reads, at the same place."""
    found = part[0]
    if part["minus"]:
        return f"{found[1:]}-"
    bit = _ZERO_OR_ONE.fullmatch(found) if part["number"] else None
    return bit[1].ljust(len(found)) if bit else found


def decode_config(content: bytes, path: str) -> str:
    """The text of a configuration file. As in Triton, comments may have any encoding. A byte order mark is ignored.

    Raises InvalidModelConfig with the position of a byte outside comments that is not UTF-8.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        text = _COMMENT.sub(
            # A comment's other bytes become question marks; strings stay unchanged.
            lambda part: part[0] if part["comment"] is None else _STRANGE_BYTE.sub("?", part[0]),
            content.decode("utf-8", "surrogateescape"),
        )
    strange = _STRANGE_BYTE.search(text)
    if strange is None:
        return text
    byte, at = ord(strange.group()) - 0xDC00, strange.start()
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    message = f"failed to read text proto from {path}: {line}:{column}: byte 0x{byte:02x} is not UTF-8"
    raise InvalidModelConfig([Problem(f"{path}:{line}:{column}", message, "save the file as UTF-8")])


def parse_config_override(json_text: str) -> ModelConfig:
    """Parse the `config` parameter of a load request, which is JSON with proto field names.

    int64 values may be numbers or strings. Raises ConfigInvalid, also for unknown fields.
    """
    try:
        config = json_format.Parse(json_text, ModelConfig())
    except json_format.ParseError as error:
        reason = _shortened(_FIELDS_LISTED.sub(".", str(error)))
        raise ConfigInvalid(f"Invalid config override: {reason}", hint=_hint(reason) or None) from None
    if not json_text.lstrip().startswith("{"):
        raise ConfigInvalid("Invalid config override: expected a JSON object")
    return config


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def _hint(reason: str) -> str:
    """The known field or value that is nearest to an unknown one; empty for other errors."""
    if match := _UNKNOWN_FIELD.search(reason):
        known = [field.name for field in pool().FindMessageTypeByName(match["type"]).fields]
    elif match := _UNKNOWN_VALUE.search(reason) or _INVALID_JSON_VALUE.search(reason):
        known = [value.name for value in pool().FindEnumTypeByName(match["type"]).values]
    else:
        return ""
    return nearest(match["name"], known)


# --- as JSON in answers

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
    """Plain JSON values in Triton's order, ready for a JSON encoder.

    Unlike protobuf's own JSON it keeps the order of declaration and prints scalars that have their default value. It
    prints 64-bit integers as numbers, except for the few fields that Triton forgets.
    """
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
        # As protobuf's JSON has it: the shortest digits that a float32 needs, names for what JSON cannot write.
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        if field.type == field.TYPE_FLOAT:
            return float(str(np.float32(value)))
    return value
