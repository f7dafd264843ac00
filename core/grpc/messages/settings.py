"""The settings of trace and log.

Source: docs/spec/grpc.md sections 1 and 5, docs/spec/trace-and-log.md sections 1 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from core.grpc.messages.message import message_of
from core.grpc.messages.wire import length_field, string_field, varint
from core.inference.tensors import Buffer


class TraceCall(NamedTuple):
    """The model whose settings are meant, "" for the server's, and the values of those that the call changes."""

    model: str
    settings: dict[str, list[str]]


def read_trace_call(content: Buffer) -> TraceCall:
    """Read a TraceSettingRequest. Raises MalformedMessage."""
    message = message_of("TraceSettingRequest", content)
    return TraceCall(message.model_name, {name: list(given.value) for name, given in message.settings.items()})


def read_log_call(content: Buffer) -> dict[str, object]:
    """The settings of a LogSettingsRequest that have a value, a flag, a number or a text. Raises MalformedMessage."""
    settings = message_of("LogSettingsRequest", content).settings
    kinds = {name: value.WhichOneof("parameter_choice") for name, value in settings.items()}
    return {name: getattr(settings[name], kind) for name, kind in kinds.items() if kind is not None}


def trace_message(settings: Mapping[str, object]) -> bytes:
    """A TraceSettingResponse. A setting is a text, or a list of texts."""
    return _map({key: _texts(value) for key, value in settings.items()})


def log_message(settings: Mapping[str, object]) -> bytes:
    """A LogSettingsResponse. A setting is a flag, a number from 0, or a text."""
    return _map({key: _log_value(value) for key, value in settings.items()})


def _map(values: Mapping[str, bytes]) -> bytes:
    return b"".join([length_field(1, string_field(1, key) + length_field(2, value)) for key, value in values.items()])


def _texts(value: object) -> bytes:
    texts = value if isinstance(value, list) else [value]
    return b"".join([length_field(1, str(text).encode()) for text in texts])


def _log_value(value: object) -> bytes:
    # The fields of a `oneof` are written though they have their default value.
    if isinstance(value, bool):
        return bytes((1 << 3, value))
    if isinstance(value, int):
        return bytes((2 << 3,)) + varint(value)
    return length_field(3, str(value).encode())
