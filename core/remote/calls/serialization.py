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
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from core.inference.tensors import BY_NAME, Buffer, Datatype
from core.interprocess.frames import ALIGNMENT

_Read = Callable[[Any], Any]

_BYTES = "base64"
_UNCHANGED = frozenset((NoneType, bool, int, str))
_NOT_FINITE = frozenset(("nan", "inf", "-inf"))
_LENIENT = b" "
_INT_KEY = re.compile(r"0|-?[1-9][0-9]{0,19}")
_SHOWN = 60


class _Misfit(ValueError):
    """A value of another type than its hint. `path` grows from the inside out while the error passes the containers."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path = ""

    def within(self, outer: str) -> _Misfit:
        self.path = outer + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path.lstrip('.') or 'the value'} is no {self.args[0]}"


def to_plain(value: object) -> Any:
    """`value` as orjson can write it. Raises TypeError for a type that cannot be sent."""
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
        return [to_plain(getattr(value, name)) for name in _field_names(type(value))]
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, str | int):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")


def from_plain(plain: Any, hint: Any) -> Any:
    """The value of type `hint` that `plain` stands for. Raises ValueError that names the part that does not fit."""
    return reader_of(hint)(plain)


def write_plain(plain: Any) -> bytes:
    """JSON, also of values that orjson refuses: half a surrogate pair, an integer of more than 64 bits."""
    try:
        return orjson.dumps(plain)
    except TypeError:
        # A file name that is not UTF-8 must not make a list of models unreadable. The blank says which parser to use.
        return _LENIENT + json.dumps(plain, separators=(",", ":")).encode()


def read_plain(content: Buffer) -> Any:
    """The value that `write_plain` wrote, perhaps followed by a frame's padding. Raises ValueError."""
    text = memoryview(content)
    end, padded = len(text), max(0, len(text) - ALIGNMENT + 1)
    while end > padded and text[end - 1] == 0:
        end -= 1
    text = text[:end]
    if text[:1] != _LENIENT:
        return orjson.loads(text)
    try:
        return json.loads(bytes(text).decode())
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def _plain_key(key: object) -> str:
    if isinstance(key, Enum):
        return _plain_key(key.value)
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"a {type(key).__name__} cannot be a key in a message to another process")


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def reader_of(hint: Any) -> _Read:
    """The function that `from_plain` uses for one hint. Callers with many values keep it: each lookup hashes the hint.

    Raises TypeError for a hint whose values cannot be sent.
    """
    if hint is Any or hint is object:
        return _unchanged
    if hint in _READERS:
        return _READERS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of({member.value: member for member in hint}, hint.__name__)
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass_reader(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union_reader(hint, list(arguments))
    if origin is list or arguments[1:] == (...,):
        return _list_reader(repeat(reader_of(arguments[0])), None, origin)
    if origin is tuple:
        return _list_reader([reader_of(each) for each in arguments], len(arguments), tuple)
    if origin in (dict, Mapping):
        return _mapping_reader(_key_reader(arguments[0]), reader_of(arguments[1]))
    raise TypeError(f"values of {hint} cannot be sent to another process")


def _unchanged(plain: Any) -> Any:
    return plain


def _exactly(kind: type[Any], name: str) -> _Read:
    def read(plain: Any) -> Any:
        if type(plain) is not kind:
            raise _Misfit(name)
        return plain

    return read


def _read_float(plain: Any) -> float:
    if type(plain) is str and plain in _NOT_FINITE:
        return float(plain)
    if type(plain) is not float and type(plain) is not int:
        raise _Misfit("float")
    return plain


def _read_bytes(plain: Any) -> bytes:
    text = plain.get(_BYTES) if type(plain) is dict and len(plain) == 1 else None
    if type(text) is not str:
        raise _Misfit("bytes")
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise _Misfit("bytes") from None


def _one_of(members: Mapping[Any, Any], name: str) -> _Read:
    def read(plain: Any) -> Any:
        # The type is checked because True is equal to 1 and has its hash.
        if type(plain) not in (str, int) or plain not in members:
            raise _Misfit(name)
        return members[plain]

    return read


_READERS: dict[Any, _Read] = {
    str: _exactly(str, "str"),
    int: _exactly(int, "int"),
    bool: _exactly(bool, "bool"),
    NoneType: _exactly(NoneType, "null"),
    float: _read_float,
    bytes: _read_bytes,
    Datatype: _one_of(BY_NAME, "datatype"),
}


def _dataclass_reader(kind: type[Any]) -> _Read:
    hints = get_type_hints(kind)
    steps = [(field.name, reader_of(hints[field.name])) for field in fields(kind)]

    def read(plain: Any) -> Any:
        if type(plain) is not list or len(plain) != len(steps):
            raise _Misfit(f"list of the {len(steps)} fields of {kind.__name__}")
        values: dict[str, Any] = {}
        name = ""
        try:
            for (name, read_field), value in zip(steps, plain, strict=True):
                values[name] = read_field(value)
        except _Misfit as misfit:
            raise misfit.within(f".{name}") from None
        return kind(**values)

    return read


def _list_reader(readers: Iterable[_Read], length: int | None, kind: type[Any]) -> _Read:
    """A list of `length` items; of any number if `length` is None, for which `readers` must be endless."""

    def read(plain: Any) -> Any:
        if type(plain) is not list or length not in (None, len(plain)):
            raise _Misfit("list" if length is None else f"list of {length}")
        items: list[Any] = []
        try:
            for read_item, item in zip(readers, plain, strict=False):
                items.append(read_item(item))
        except _Misfit as misfit:
            raise misfit.within(f"[{len(items)}]") from None
        return items if kind is list else tuple(items)

    return read


def _mapping_reader(read_key: _Read, read_value: _Read) -> _Read:
    def read(plain: Any) -> Any:
        if type(plain) is not dict:
            raise _Misfit("object")
        found: dict[Any, Any] = {}
        text = ""
        try:
            for text, value in plain.items():
                found[read_key(text)] = read_value(value)
        except _Misfit as misfit:
            raise misfit.within(f"[{text[:_SHOWN]!r}]") from None
        return found

    return read


def _key_reader(hint: Any) -> _Read:
    """Reads a key, which JSON has as a text."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of({_plain_key(member): member for member in hint}, f"key of type {hint.__name__}")
    return _read_int_key if hint is int else reader_of(hint)


def _read_int_key(text: str) -> int:
    if not _INT_KEY.fullmatch(text):
        raise _Misfit("key of type int")
    return int(text)


def _union_reader(hint: Any, members: list[Any]) -> _Read:
    readers = [reader_of(member) for member in members if member is not NoneType]
    optional = len(readers) < len(members)

    def read(plain: Any) -> Any:
        if plain is None and optional:
            return None
        if len(readers) == 1:
            return readers[0](plain)
        for read_member in readers:
            with suppress(_Misfit):
                return read_member(plain)
        raise _Misfit(str(hint))

    return read
