"""Converts Python values of one input to an array, level by level in C and not element by element in Python."""

from __future__ import annotations

import binascii
from itertools import chain
from typing import Any

import numpy as np

from core.config.golden.tensor import NOT_FINITE, is_floating
from core.config.json_fields import shown
from core.config.model_spec import InputSpec
from core.errors import InvalidRequest
from core.http.payloads.conversion import as_datatype, expected_text, wide_integers
from core.http.payloads.error_location import ErrorLocation, mismatch, unravelled
from core.inference.tensors import BYTES, Array, Datatype, Shape, bytes_array, element_count

_B64 = frozenset({"b64"})
# From this number on a double cannot represent every integer.
_EXACT = 2.0**53
_LARGEST = int(np.finfo(np.float64).max)
_LOWEST = -(2.0**63)


def rank_of(value: Any) -> int:
    """The nesting depth of lists, judged by their first elements."""
    rank = 0
    while type(value) is list:
        rank += 1
        value = value[0] if value else None
    return rank


def is_b64(value: Any) -> bool:
    """Whether a value represents bytes: `{"b64": "..."}`."""
    return type(value) is dict and value.keys() == _B64


def column_array(values: list[Any], expected: InputSpec, location: ErrorLocation) -> Array:
    """The array `[len(values), *dims]` of the values of one input, one per instance, in the input's numpy type.

    Nested lists must match the dims, and each other if a dim is variable. If all dims are 1 the lists may be omitted.
    For numbers `{"b64": ...}` may give a whole instance, little-endian and row-major. Raises InvalidRequest that names
    the first error.
    """
    if expected.datatype is not BYTES and values and all(map(is_b64, values)):
        return _raw_rows(values, expected, location)
    dims = expected.dims
    if type(values[0]) is not list and all(dim == 1 for dim in dims):
        return _elements(values, (len(values), *dims), expected.datatype, location)
    level, shape = values, [len(values)]
    for dim in dims:
        length = _common_length(level, dim, shape, location)
        shape.append(length)
        level = list(chain.from_iterable(level))
    return _elements(level, tuple(shape), expected.datatype, location)


def decode_b64(value: dict[str, Any], location: str) -> bytes:
    """The bytes of `{"b64": "..."}`: standard base64 with padding. Raises InvalidRequest."""
    text = value["b64"]
    if type(text) is not str:
        raise mismatch(f"{location}, 'b64'", "a string of base64", shown(text))
    if len(text) % 4:
        # Checked here, because the decoder accepts "AAAA=".
        raise InvalidRequest(f"{location}, 'b64': invalid base64: its length, {len(text)}, is not a multiple of 4")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise InvalidRequest(f"{location}, 'b64': invalid base64: {error}") from None


def _common_length(level: list[Any], dim: int, shape: list[int], location: ErrorLocation) -> int:
    """The common length of the lists of `level`, which must be `dim` unless that is variable."""
    if set(map(type, level)) <= {list}:
        lengths = set(map(len, level))
        if len(lengths) <= 1 and (dim == -1 or lengths <= {dim}):
            return lengths.pop() if lengths else max(dim, 0)
    raise _wrong_length(level, dim, tuple(shape), location)


def _wrong_length(level: list[Any], dim: int, shape: Shape, location: ErrorLocation) -> InvalidRequest:
    """The error for the first value that is not a list of length `dim`, or of the first list's length."""
    wanted = dim if dim != -1 else next((len(value) for value in level if type(value) is list), -1)
    index = next(i for i, value in enumerate(level) if type(value) is not list or len(value) != wanted)
    where, value = location.at(*unravelled(index, shape)), level[index]
    if type(value) is not list:
        return mismatch(where, "a list" if dim == -1 else f"a list of {dim}", shown(value))
    as_first = f", as {location.at(*(0 for _ in shape))} has" if dim == -1 else ""
    return mismatch(where, f"a list of {wanted}{as_first}", f"one of {len(value)}")


def _elements(flat: list[Any], shape: Shape, datatype: Datatype, location: ErrorLocation) -> Array:
    if datatype is BYTES:
        return _strings(flat, shape, location)
    if datatype.kind == "b":
        _check_types(flat, {bool}, shape, datatype, location)
        return np.array(flat, np.bool_).reshape(shape)
    wide = (
        _doubles(flat, shape, datatype, location)
        if is_floating(datatype)
        else _integers(flat, shape, datatype, location)
    )
    return as_datatype(wide.reshape(shape), datatype, location)


def _doubles(flat: list[Any], shape: Shape, datatype: Datatype, location: ErrorLocation) -> Array:
    types = set(map(type, flat))
    if str in types:
        # JSON has no NaN and no infinities, so they are strings. Only a column with strings pays for this loop.
        flat = [NOT_FINITE.get(value, value) if type(value) is str else value for value in flat]
    if not types <= {int, float}:
        _check_types(flat, {int, float}, shape, datatype, location)
    try:
        return np.array(flat, np.float64)
    except OverflowError:  # an integer that only the parser of `json` accepts
        index = next(i for i, value in enumerate(flat) if abs(value) > _LARGEST)
        raise _wrong(flat, index, shape, datatype, location) from None


def _integers(flat: list[Any], shape: Shape, datatype: Datatype, location: ErrorLocation) -> Array:
    """The numbers as int64 or uint64, or as doubles if some are written as such and all have exact integer values."""
    types = _check_types(flat, {int, float}, shape, datatype, location)
    if float in types:
        numbers = np.array(flat, np.float64)
        if np.abs(numbers).max() < _EXACT:
            return numbers
        # orjson parses integers beyond 64 bits as doubles; those just below the lowest int64 become exactly that.
        flat = [
            int(value) if type(value) is float and value.is_integer() and value > _LOWEST else value for value in flat
        ]
        _check_types(flat, {int}, shape, datatype, location)
    wide = wide_integers(flat)
    if wide is None:
        limits = np.iinfo(datatype.dtype)
        index = next(i for i, value in enumerate(flat) if not limits.min <= value <= limits.max)
        raise _wrong(flat, index, shape, datatype, location)
    return wide


def _strings(flat: list[Any], shape: Shape, location: ErrorLocation) -> Array:
    types = _check_types(flat, {str, dict}, shape, BYTES, location)
    if dict not in types:
        return bytes_array([_utf8(value, i, shape, location) for i, value in enumerate(flat)], shape)
    elements: list[bytes] = []
    for index, value in enumerate(flat):
        if type(value) is str:
            elements.append(_utf8(value, index, shape, location))
        elif is_b64(value):
            elements.append(decode_b64(value, location.element(index, shape)))
        else:
            raise _wrong(flat, index, shape, BYTES, location)
    return bytes_array(elements, shape)


def _utf8(text: str, index: int, shape: Shape, location: ErrorLocation) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can have half of a surrogate pair
        raise mismatch(location.element(index, shape), "Unicode text", "half of a surrogate pair") from None


def _raw_rows(values: list[Any], expected: InputSpec, location: ErrorLocation) -> Array:
    rows = [raw_row(decode_b64(v, location.at(i)), expected, location.at(i)) for i, v in enumerate(values)]
    for index, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise mismatch(location.at(index), f"{rows[0].nbytes} bytes, as {location.at(0)} has", str(row.nbytes))
    return np.stack(rows)


def raw_row(content: bytes | memoryview, expected: InputSpec, location: str) -> Array:
    """One instance from its little-endian, row-major bytes; their number resolves one variable dim."""
    datatype, dims = expected.datatype, expected.dims
    fixed = element_count(dim for dim in dims if dim != -1) * datatype.size
    given = len(content)
    if dims.count(-1) > 1:
        raise InvalidRequest(f"{location}: raw bytes cannot determine {dims.count(-1)} variable dimensions, send lists")
    if -1 in dims:
        if not fixed or given % fixed:
            raise mismatch(location, f"a multiple of {fixed} bytes", str(given))
        dims = tuple(given // fixed if dim == -1 else dim for dim in dims)
    elif given != fixed:
        raise mismatch(location, f"{fixed} bytes", str(given))
    array: Array = np.frombuffer(content, datatype.dtype).reshape(dims)
    if datatype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise mismatch(location, "bytes that are 0 or 1", "others")
    return array


def _check_types(
    flat: list[Any], allowed: set[type], shape: Shape, datatype: Datatype, location: ErrorLocation
) -> set[type]:
    """The types of the elements. Raises InvalidRequest for the first element whose type is not in `allowed`."""
    types = set(map(type, flat))
    if not types <= allowed:
        index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
        raise _wrong(flat, index, shape, datatype, location)
    return types


def _wrong(flat: list[Any], index: int, shape: Shape, datatype: Datatype, location: ErrorLocation) -> InvalidRequest:
    return mismatch(location.element(index, shape), expected_text(datatype), shown(flat[index]))
