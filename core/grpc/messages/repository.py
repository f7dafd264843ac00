"""The calls of the model repository: index, load, unload.

Source: docs/spec/grpc.md sections 1 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from core.errors import InvalidRequest
from core.frontend.repository_name import refuse_repository
from core.grpc.messages.message import message_of
from core.grpc.messages.wire import length_field, string_field
from core.inference.tensors import Buffer
from core.lifecycle.repository_index import IndexEntry

_FILE_PREFIX = "file:"
_CHOICE = "parameter_choice"


class LoadCall(NamedTuple):
    """The model to load, and the parameters as `Engine.load_model` takes them."""

    model: str
    parameters: dict[str, str | bytes]


class UnloadCall(NamedTuple):
    model: str
    unload_dependents: bool


def read_index_call(content: Buffer) -> bool:
    """Whether a RepositoryIndexRequest asks for the ready models only. Raises MalformedMessage, Unsupported."""
    message = message_of("RepositoryIndexRequest", content)
    refuse_repository(message.repository_name)
    ready: bool = message.ready
    return ready


def read_load_call(content: Buffer) -> LoadCall:
    """Read a RepositoryModelLoadRequest. Raises MalformedMessage, Unsupported, InvalidRequest."""
    message = message_of("RepositoryModelLoadRequest", content)
    refuse_repository(message.repository_name)
    parameters: dict[str, str | bytes] = {}
    for key, parameter in message.parameters.items():
        if key == "config":
            parameters[key] = _value(key, parameter, "string_param")
        elif key.startswith(_FILE_PREFIX):
            parameters[key] = _value(key, parameter, "bytes_param")
        else:
            raise InvalidRequest(
                f"unrecognized load parameter '{key}'.", hint="the parameters are 'config' and 'file:PATH'"
            )
    return LoadCall(message.model_name, parameters)


def read_unload_call(content: Buffer) -> UnloadCall:
    """Read a RepositoryModelUnloadRequest; parameters that it does not know are ignored. Raises MalformedMessage,
    Unsupported, InvalidRequest."""
    message = message_of("RepositoryModelUnloadRequest", content)
    refuse_repository(message.repository_name)
    parameter = message.parameters.get("unload_dependents")
    if parameter is None:
        return UnloadCall(message.model_name, False)
    if parameter.WhichOneof(_CHOICE) != "bool_param":
        raise InvalidRequest("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return UnloadCall(message.model_name, parameter.bool_param)


def index_message(entries: Iterable[IndexEntry]) -> bytes:
    """A RepositoryIndexResponse."""
    return b"".join([length_field(1, _entry(entry)) for entry in entries])


def _entry(entry: IndexEntry) -> bytes:
    version = "" if entry.version is None else str(entry.version)
    state = "" if entry.state is None else entry.state.value
    texts = (entry.name, version, state, entry.reason)
    return b"".join([string_field(number, text) for number, text in enumerate(texts, 1)])


def _value(key: str, parameter: Any, wanted: str) -> Any:
    if parameter.WhichOneof(_CHOICE) != wanted:
        raise InvalidRequest(f"invalid value type for load parameter '{key}', expected {wanted}.")
    return getattr(parameter, wanted)
