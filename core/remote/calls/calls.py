"""The methods of the Engine protocol that a front end calls and waits for, as JSON.

A call is [name, arguments], a result [true, value] or [false, error]. What the arguments and the value are comes from
the annotations of the protocol. Source: docs/architecture.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from types import GenericAlias
from typing import Any, get_type_hints

from core.engine.protocol import Engine
from core.errors import ServerError
from core.inference.tensors import Buffer
from core.remote.calls.remote_error import error_of, error_to_plain
from core.remote.calls.serialization import from_plain, read_plain, to_plain, write_plain

_SHOWN = 60
_AT_ONCE = (
    "model_spec",
    "server_metadata",
    "model_metadata",
    "model_config",
    "model_statistics",
    "is_model_ready",
    "settings",
    "metrics",
)
_BLOCKING = ("repository_index", "load_model", "load_directory", "unload_model")


@dataclass(frozen=True, slots=True)
class Call:
    """One method. `parameters` and `result` are type hints; the last `keywords` parameters go by their names only.

    `blocks` says that it may wait for storage, for a load or for memory to be freed.
    """

    name: str
    parameters: tuple[Any, ...]
    result: Any
    blocks: bool
    keywords: tuple[str, ...] = ()

    def ask(self, engine: Engine, arguments: Sequence[Any]) -> Any:
        """Call the method, with all of its arguments in order; raises what it raises."""
        positional = len(self.parameters) - len(self.keywords)
        named = dict(zip(self.keywords, arguments[positional:], strict=True))
        return getattr(engine, self.name)(*arguments[:positional], **named)


def _call(name: str) -> Call:
    method = getattr(Engine, name)
    hints = get_type_hints(method)
    parameters = list(signature(method).parameters.values())[1:]
    return Call(
        name=name,
        parameters=tuple(hints[each.name] for each in parameters),
        result=hints["return"],
        blocks=name in _BLOCKING,
        keywords=tuple(each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY),
    )


CALLS: dict[str, Call] = {name: _call(name) for name in (*_AT_ONCE, *_BLOCKING)}


def encode_call(name: str, arguments: Sequence[object]) -> bytes:
    """A call with all arguments of the method, in order. Raises TypeError where there are more or fewer."""
    if len(arguments) != len(CALLS[name].parameters):
        raise TypeError(f"{name} takes {len(CALLS[name].parameters)} arguments, not {len(arguments)}")
    return write_plain([name, to_plain(arguments)])


def decode_call(content: Buffer) -> tuple[Call, list[Any]]:
    """Raises ValueError for an unknown name, and for a wrong number or wrong types of arguments."""
    name, plain = _pair(content)
    call = CALLS.get(name) if type(name) is str else None
    if call is None:
        raise ValueError(f"there is no call {str(name)[:_SHOWN]!r}")
    try:
        return call, list(from_plain(plain, GenericAlias(tuple, call.parameters)))
    except ValueError as error:
        raise ValueError(f"the arguments of {call.name}: {error}") from None


def encode_result(call: Call, value: object) -> bytes:
    """Raises TypeError for a value that cannot be sent."""
    return write_plain([True, to_plain(value)])


def encode_failure(error: BaseException) -> bytes:
    """As `error_to_plain`: what is no ServerError is logged."""
    return write_plain([False, error_to_plain(error)])


def decode_result(call: Call, content: Buffer) -> Any:
    """What the call returned. Raises the ServerError that it raised, ValueError for what is no result of it."""
    went_well, plain = _pair(content)
    if went_well is False:
        raise error_of(plain)
    if went_well is not True:
        raise ValueError(f"the result of {call.name} does not say whether it is one")
    try:
        return from_plain(plain, call.result)
    except ValueError as error:
        raise ValueError(f"the result of {call.name}: {error}") from None


def decode_failure(content: Buffer) -> ServerError:
    """The error that `encode_failure` wrote. Raises ValueError for what is none."""
    went_well, plain = _pair(content)
    if went_well is not False:
        raise ValueError("a failure that is none")
    return error_of(plain)


def _pair(content: Buffer) -> tuple[Any, Any]:
    plain = read_plain(content)
    if type(plain) is not list or len(plain) != 2:
        raise ValueError("neither a call nor a result")
    return plain[0], plain[1]
