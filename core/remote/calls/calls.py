"""The calls of the Engine protocol as JSON: every method that is marked with `core.engine.call`.

A call is [name, arguments], a result is [true, value] or [false, error]. The annotations of the protocol give the types
of the arguments and the value. Source: docs/architecture.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from types import GenericAlias
from typing import Any, get_type_hints

from core.engine.call import CallMark, mark_of
from core.engine.protocol import Engine
from core.errors import ServerError
from core.inference.tensors import Buffer
from core.remote.calls.remote_error import error_of, error_to_plain
from core.remote.calls.serialization import from_plain, read_plain, to_plain, write_plain

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Call:
    """One method. `parameters` and `result` are type hints; the last `keywords` parameters are keyword-only."""

    name: str
    mark: CallMark
    parameters: tuple[Any, ...]
    result: Any
    keywords: tuple[str, ...]
    _signature: Signature

    @staticmethod
    def of(name: str, mark: CallMark) -> Call:
        method = getattr(Engine, name)
        hints = get_type_hints(method)
        taken = signature(method)
        parameters = list(taken.parameters.values())[1:]
        return Call(
            name=name,
            mark=mark,
            parameters=tuple(hints[each.name] for each in parameters),
            result=hints["return"],
            keywords=tuple(each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY),
            _signature=taken.replace(parameters=parameters),
        )

    def bind(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> list[Any]:
        """All arguments of the method in order, defaults included. Raises TypeError if they do not fit it."""
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return list(bound.arguments.values())

    def ask(self, engine: Engine, arguments: Sequence[Any]) -> Any:
        """Call the method with all of its arguments in order. Raises what the method raises."""
        positional = len(self.parameters) - len(self.keywords)
        named = dict(zip(self.keywords, arguments[positional:], strict=True))
        return getattr(engine, self.name)(*arguments[:positional], **named)


CALLS: dict[str, Call] = {
    name: Call.of(name, mark) for name, method in vars(Engine).items() if (mark := mark_of(method)) is not None
}


def encode_call(name: str, arguments: Sequence[object]) -> bytes:
    """A call with all arguments of the method in order. Raises TypeError if there are more or fewer."""
    if len(arguments) != len(CALLS[name].parameters):
        raise TypeError(f"{name} takes {len(CALLS[name].parameters)} arguments, not {len(arguments)}")
    return write_plain([name, to_plain(arguments)])


def decode_call(content: Buffer) -> tuple[Call, list[Any]]:
    """Raises ValueError for an unknown name, and for arguments of the wrong number or types."""
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
    """Like `error_to_plain`, logs an error that is no ServerError."""
    return write_plain([False, error_to_plain(error)])


def decode_result(call: Call, content: Buffer) -> Any:
    """The value that the call returned. Raises the ServerError that it raised, ValueError for malformed content."""
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
    """The error that `encode_failure` wrote. Raises ValueError for other content."""
    went_well, plain = _pair(content)
    if went_well is not False:
        raise ValueError("a result, not a failure")
    return error_of(plain)


def _pair(content: Buffer) -> tuple[Any, Any]:
    plain = read_plain(content)
    if type(plain) is not list or len(plain) != 2:
        raise ValueError("neither a call nor a result")
    return plain[0], plain[1]
