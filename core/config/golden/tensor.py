"""A tensor of a golden request: JSON values converted to an array, without silent rounding or wrapping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from core.config.json_fields import Fields, Malformed, nearest, shown
from core.inference.tensors import (
    BY_NAME,
    BYTES,
    MAX_ELEMENTS,
    Array,
    Datatype,
    Shape,
    bytes_array,
    element_count,
    shape_text,
)

TENSOR_FIELDS = ("name", "datatype", "shape", "data")
# JSON has no numbers for these. JavaScript and Python's `float` read the same strings.
NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

_MOST_DIMENSIONS = 64  # of a numpy array
_LARGEST_ELEMENT = 8  # bytes

_BF16 = BY_NAME["BF16"]
_Element = int | float | bool | bytes


@dataclass(frozen=True, slots=True, eq=False)
class GoldenTensor:
    """One tensor of a request or of an expected response, in the client's shape (with the batch dimension).

    `array` is of the datatype's numpy type: bit patterns for BF16, objects for BYTES.
    """

    name: str
    datatype: Datatype
    array: Array


def golden_tensor(fields: Fields) -> GoldenTensor:
    """The tensor that `fields` describe; they are at least TENSOR_FIELDS. Raises Malformed."""
    name = fields.text("name")
    datatype_name = fields.text("datatype")
    datatype = BY_NAME.get(datatype_name)
    if datatype is None:
        message = f"{fields.path_of('datatype')}: expected one of {', '.join(BY_NAME)}, got {shown(datatype_name)}"
        raise Malformed(message, hint=nearest(datatype_name, BY_NAME))
    shape = _shape(fields)
    array = _array(datatype, fields.elements("data"), shape, fields.path_of("data"))
    return GoldenTensor(name, datatype, array.reshape(shape))


def is_floating(datatype: Datatype) -> bool:
    return datatype is _BF16 or datatype.kind == "f"


def as_numbers(array: Array, datatype: Datatype) -> Array:
    """`array` as numbers: the bit patterns of BF16 become FP32 numbers, other arrays stay unchanged."""
    if datatype is not _BF16:
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _shape(fields: Fields) -> Shape:
    shape = fields.integers("shape")
    place = fields.path_of("shape")
    if len(shape) > _MOST_DIMENSIONS:
        raise Malformed(f"{place}: expected at most {_MOST_DIMENSIONS} dimensions, got {len(shape)}")
    # A dimension of 0 does not excuse the others: numpy multiplies them all.
    if element_count(dim or 1 for dim in shape) > MAX_ELEMENTS // _LARGEST_ELEMENT:
        raise Malformed(f"{place}: expected fewer elements")
    return shape


def _array(datatype: Datatype, values: list[object], shape: Shape, path: str) -> Array:
    """The flat array of `values`, which are flat or nested according to `shape`."""
    nested = any(isinstance(value, list) for value in values)
    flat = _flattened(values, shape, path) if nested else values
    count = element_count(shape)
    if len(flat) != count:
        raise Malformed(f"{path}: expected {count} elements for shape {shape_text(shape)}, got {len(flat)}")

    def place(index: int) -> str:
        return path + (_index_text(index, shape) if nested else f"[{index}]")

    element = _reader(datatype)
    elements: list[Any] = []
    for index, value in enumerate(flat):
        read = element(value)
        if read is None:
            raise Malformed(f"{place(index)}: expected {_expected(datatype)}, got {shown(value)}")
        elements.append(read)
    if datatype is BYTES:
        return bytes_array(elements, (count,))
    if not is_floating(datatype):
        return np.array(elements, dtype=datatype.dtype)
    wide = np.array(elements, dtype=np.float64)
    narrow = _narrowed(wide, datatype)
    out_of_range = np.flatnonzero(np.isfinite(wide) & ~np.isfinite(as_numbers(narrow, datatype)))
    if out_of_range.size:
        index = int(out_of_range[0])
        raise Malformed(f"{place(index)}: expected a number in the range of {datatype.name}, got {shown(flat[index])}")
    return narrow


def _flattened(values: list[object], shape: Shape, path: str) -> list[object]:
    """The elements of nested lists in row-major order. Raises Malformed if a list's length is not its dimension."""
    level: list[object] = [values]
    for depth, dim in enumerate(shape):
        rows: list[list[object]] = []
        for index, row in enumerate(level):
            if not isinstance(row, list) or len(row) != dim:
                got = f"a list of {len(row)}" if isinstance(row, list) else shown(row)
                place = path + _index_text(index, shape[:depth])
                raise Malformed(f"{place}: expected a list of {dim} for shape {shape_text(shape)}, got {got}")
            rows.append(row)
        level = list(chain.from_iterable(rows))
    return level


def _index_text(index: int, shape: Shape) -> str:
    """The place of the row-major `index` in nested lists of `shape`, such as `[1][3]`."""
    indices: list[int] = []
    for dim in reversed(shape):
        index, rest = divmod(index, dim)
        indices.append(rest)
    return "".join(f"[{each}]" for each in reversed(indices))


def _reader(datatype: Datatype) -> Callable[[object], _Element | None]:
    """A function that converts one JSON value to the datatype; it returns None for an invalid value."""
    if datatype is BYTES:
        return _text
    if is_floating(datatype):
        return _number
    if datatype.kind == "b":
        return _bool
    limits = np.iinfo(datatype.dtype)
    low, high = int(limits.min), int(limits.max)

    def integer(value: object) -> int | None:
        return value if type(value) is int and low <= value <= high else None

    return integer


def _bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:  # JSON can write half of a surrogate pair
        return None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _expected(datatype: Datatype) -> str:
    if datatype is BYTES:
        return "a string of Unicode text"
    if is_floating(datatype):
        return f"a number in the range of {datatype.name} or one of " + ", ".join(f'"{name}"' for name in NOT_FINITE)
    if datatype.kind == "b":
        return "true or false"
    limits = np.iinfo(datatype.dtype)
    return f"an integer from {limits.min} to {limits.max}"


def _narrowed(wide: Array, datatype: Datatype) -> Array:
    """FP64 numbers rounded to `datatype`; numbers beyond its range become infinite."""
    with np.errstate(over="ignore"):
        if datatype is not _BF16:
            return wide.astype(datatype.dtype)
        bits = wide.astype(np.float32).view(np.uint32)
    # Round to nearest, ties to even: add half of the lowest bit that stays, less one if that bit is 0.
    # The only NaN that JSON values make has none of the bits that are dropped, so it stays a NaN.
    rounded: Array = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)
