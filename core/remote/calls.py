"""The values of the Engine protocol as JSON, and the values of JSON by the type hints of the protocol.

    dataclass     a list of its fields, in order           Enum        its value
    tuple, list   a list                                   Datatype    its name
    mapping       an object; int keys as texts             bytes       {"base64": text}
    float         a number; nan, inf and -inf as texts     others      unchanged

The hint alone decides how a value is read: no class is looked up by a name in the JSON, and nothing in it is executed.
Where the hint is Any or object a value stays as JSON has it: a tuple is a list, a key is a text.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import Parameter, Signature, signature
from types import NoneType, UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from trident.core import errors
from trident.core.borders import expected
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.engine.protocol import CallMark, Engine, mark_of
from trident.core.errors import ErrorCode, ServerError
from trident.core.inference.tensors import BY_NAME, Buffer, Datatype
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.observability.log import LogLevels

_Read = Callable[[Any], Any]

_BYTES = "base64"
_UNCHANGED = frozenset((NoneType, bool, int, str))
_LENIENT = b" "


def to_plain(value: object) -> Any:
    """Convert `value` to types that orjson can write. Raises TypeError for a type that cannot be sent."""
    if type(value) in _UNCHANGED:
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict | Mapping):
        return {_plain_key(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Datatype):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return [to_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, str | int):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")


def from_plain(plain: Any, hint: Any) -> Any:
    """Return the value of type `hint` for `plain`. Both ends are of one installation, so it is not checked."""
    return reader_of(hint)(plain)


def write_plain(plain: Any) -> bytes:
    """Write JSON, also of values that orjson refuses: half a surrogate pair, an integer of more than 64 bits.

    A float must be finite, as `to_plain` makes it: orjson writes null for any other.
    """
    try:
        return orjson.dumps(plain)
    except TypeError:
        # A file name that is not UTF-8 must not make a list of models unreadable.
        return write_exactly(plain)


def write_exactly(plain: Any) -> bytes:
    """Write JSON as Python does, also NaN and the infinities. The leading blank selects the parser."""
    return _LENIENT + json.dumps(plain, separators=(",", ":")).encode()


def read_plain(content: Buffer) -> Any:
    """Return what `write_plain` or `write_exactly` wrote, also with blanks after it. Raises ValueError."""
    text = memoryview(content)
    return orjson.loads(text) if text[:1] != _LENIENT else json.loads(bytes(text))


def _plain_key(key: object) -> str:
    if isinstance(key, Enum):
        return _plain_key(key.value)
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"a {type(key).__name__} cannot be a key in a message to another process")


@cache
def reader_of(hint: Any) -> _Read:
    """Return the function that reads values of one hint. Callers with many values store it: a lookup hashes the hint.

    Raises TypeError for a hint whose values cannot be sent.
    """
    if hint in _READERS:
        return _READERS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        steps = [(field.name, reader_of(hints[field.name])) for field in fields(hint)]
        return lambda plain: hint(**{name: read(value) for (name, read), value in zip(steps, plain, strict=True)})
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if origin is list or arguments[1:] == (...,):
        read_item = reader_of(arguments[0])
        return lambda plain: origin(map(read_item, plain))
    if origin is tuple:
        readers = [reader_of(each) for each in arguments]
        return lambda plain: tuple(read(item) for read, item in zip(readers, plain, strict=True))
    if origin in (dict, Mapping):
        key, read_value = arguments[0], reader_of(arguments[1])
        read_key: _Read = int if key is int else _unchanged
        if isinstance(key, type) and issubclass(key, Enum):
            read_key = {_plain_key(member): member for member in key}.__getitem__
        return lambda plain: {read_key(text): read_value(value) for text, value in plain.items()}
    raise TypeError(f"values of {hint} cannot be sent to another process")


def _unchanged(plain: Any) -> Any:
    return plain


_READERS: dict[Any, _Read] = {
    **dict.fromkeys((Any, object, str, int, bool, NoneType), _unchanged),
    float: lambda plain: float(plain) if type(plain) is str else plain,
    bytes: lambda plain: b64decode(plain[_BYTES]),
    Datatype: BY_NAME.__getitem__,
}


def _union_reader(members: tuple[Any, ...]) -> _Read:
    """Return a reader that chooses by the JSON value's type: at most one member is a list, at most one an object."""
    readers: dict[type[Any], _Read] = {}
    for each in members:
        if each is bytes or get_origin(each) in (dict, Mapping):
            readers[dict] = reader_of(each)
        elif get_origin(each) in (list, tuple) or is_dataclass(each):
            readers[list] = reader_of(each)
        elif each is not NoneType:
            readers[object] = reader_of(each)
    if len(members) == 2 and NoneType in members:
        (read,) = readers.values()
        return read if read is _unchanged else lambda plain: None if plain is None else read(plain)
    return lambda plain: readers[type(plain)](plain) if type(plain) in readers else plain


# A call is [name, arguments], a result is [true, value] or [false, error]. The annotations of the protocol give the
# types of the arguments and the value. Source: docs/architecture.md section 5.


@dataclass(frozen=True, slots=True)
class EngineMethod:
    """A method of the Engine protocol. `parameters` and `result` are type hints; the last `keywords` parameters are
    keyword-only.
    """

    name: str
    mark: CallMark
    parameters: tuple[Any, ...]
    result: Any
    keywords: tuple[str, ...]
    _signature: Signature

    @staticmethod
    def of(name: str, mark: CallMark) -> EngineMethod:
        method = getattr(Engine, name)
        hints = get_type_hints(method)
        taken = signature(method)
        parameters = list(taken.parameters.values())[1:]
        return EngineMethod(
            name=name,
            mark=mark,
            parameters=tuple(hints[each.name] for each in parameters),
            result=hints["return"],
            keywords=tuple(each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY),
            _signature=taken.replace(parameters=parameters),
        )

    def bind(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> list[Any]:
        """Return all arguments in order, defaults included. Raises TypeError if they do not fit the method."""
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return list(bound.arguments.values())

    def ask(self, engine: Engine, arguments: Sequence[Any]) -> Any:
        positional = len(self.parameters) - len(self.keywords)
        named = dict(zip(self.keywords, arguments[positional:], strict=True))
        return getattr(engine, self.name)(*arguments[:positional], **named)


CALLS: dict[str, EngineMethod] = {
    name: EngineMethod.of(name, mark) for name, method in vars(Engine).items() if (mark := mark_of(method)) is not None
}

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def sent_by(
    send: Callable[[S, EngineMethod, list[Any]], Any], method: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[S, P], R]:
    """Return a method with the signature of `method` that passes itself and its arguments to `send`."""
    call = CALLS[method.__name__]

    def sent(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = send(self, call, call.bind(args, kwargs))
        return result

    return sent


def encode_call(name: str, arguments: Sequence[object]) -> bytes:
    return write_plain([name, to_plain(arguments)])


def decode_call(content: Buffer) -> tuple[EngineMethod, list[Any]]:
    """Read what `encode_call` wrote."""
    name, plain = read_plain(content)
    call = CALLS[name]
    return call, [reader_of(hint)(each) for hint, each in zip(call.parameters, plain, strict=True)]


def encode_result(call: EngineMethod, value: object) -> bytes:
    """Raises TypeError for a value that cannot be sent."""
    return write_plain([True, to_plain(value)])


def encode_failure(error: BaseException) -> bytes:
    """Write a failed call; like `error_to_plain`, it logs any error but a ServerError."""
    return write_plain([False, error_to_plain(error)])


def decode_result(call: EngineMethod, content: Buffer) -> Any:
    """Return the value that the call returned. Raises the ServerError that it raised."""
    went_well, plain = read_plain(content)
    if not went_well:
        raise error_of(plain)
    return from_plain(plain, call.result)


# --- the state of the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """`generation` changes whenever another set of model versions serves. `log` is None if nothing is known
    of it. `is_tracing` and `reads_trace_context` are the flags of TraceGate.
    """

    live: bool
    ready: bool
    generation: int
    phase: ServingPhase
    log: LogLevels | None = None
    is_tracing: bool = False
    reads_trace_context: bool = False


def engine_down(reason: str) -> EngineState:
    """Return the state without an engine: live, because it is being restarted, but not ready."""
    phase = ServingPhase(name=Phase.ENGINE_DOWN, failures={"engine": reason})
    return EngineState(live=True, ready=False, generation=-1, phase=phase)


# --- errors
#
#     EngineGone    UNAVAILABLE    the engine ended while it had the request, or does not run
#
# The front end raises EngineGone itself; all other errors are sent by the engine. An unknown class becomes a plain
# ServerError of the same code, so that the answer has the same status. Source: the tree in core/errors.py.


class EngineGone(ServerError):
    code = ErrorCode.UNAVAILABLE
    retry_after_s = 1


_CLASSES: dict[str, type[ServerError]] = {
    kind.__name__: kind
    for kind in (*vars(errors).values(), EngineGone)
    if isinstance(kind, type) and issubclass(kind, ServerError)
}


def error_to_plain(error: BaseException) -> list[Any]:
    """Return class, code, message, hint, model, when to try again and the problems of a model configuration, for
    `error_of`.

    Any other error than a ServerError becomes a general one; the log has it with its traceback.
    """
    error = expected(error, "a request or a call of a front end")
    return [
        type(error).__name__,
        error.code.value,
        _unicode(error.message),
        None if error.hint is None else _unicode(error.hint),
        None if error.model is None else _unicode(error.model),
        error.retry_after_s,
        [[_unicode(each.path), _unicode(each.message), _unicode(each.hint)] for each in error.problems]
        if isinstance(error, InvalidModelConfig)
        else [],
    ]


def error_of(plain: Any) -> ServerError:
    name, code, message, hint, model, retry_after_s, problems = plain
    if name == InvalidModelConfig.__name__ and problems:
        return InvalidModelConfig([Problem(*each) for each in problems], model=model)
    error = _CLASSES.get(name, ServerError)(message, hint=hint, model=model)
    error.code = ErrorCode(code)
    error.retry_after_s = retry_after_s
    return error


def _unicode(text: str) -> str:
    """Return `text` as valid Unicode: it may quote a client's bytes or a file name."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
