"""Tensors to and from JSON: lists of a small document, number arrays of a large one.

A small document has lists of Python values, a large one flat arrays of numbers (a 3x224x224 image: 8 ms; `json` and
numpy take 95 ms).
Source: docs/spec/http.md section 5. Out-of-range integers are refused; Triton wraps them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from core.errors import InvalidRequest
from core.http.slices.wrong_element import WrongElement
from core.inference.tensors import BY_NAME, Array, Datatype, bytes_array

MAX_DEPTH = 100
NESTED_TOO_DEEP = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"

_IN_JSON = {name: row for name, row in BY_NAME.items() if name not in ("FP16", "BF16")}
_PARSE = "Unable to parse 'data': "
_PARSE_BYTES = "Unable to parse JSON bytes array: "
_EXPECTED = {
    "b": "attempt to access JSON non-boolean as boolean",
    "i": "attempt to access JSON non-signed-integer as signed-integer",
    "u": "attempt to access JSON non-unsigned-integer as unsigned-integer",
    "f": "attempt to access JSON non-number as double",
    "O": "attempt to access JSON non-string as string",
}
_ELEMENT_TYPES: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({int, float}),
    "O": frozenset({str}),
}


def json_datatype(name: str, input_name: str) -> Datatype:
    """The datatype of an input whose data is JSON. Raises InvalidRequest for a datatype that JSON cannot carry."""
    datatype = _IN_JSON.get(name)
    if datatype is not None:
        return datatype
    if name in BY_NAME:
        raise InvalidRequest(
            f"receiving {name} data via JSON is not supported. Please use the binary data format for input {input_name}"
        )
    raise InvalidRequest(f"invalid datatype for input {input_name}", hint=f"one of: {', '.join(BY_NAME)}")


def array_from_json(content: Any, datatype: Datatype, count: int | None, input_name: str) -> Array:
    """The flat array of the `count` elements of `content`, a list or an array of the widest type of their kind.

    With `count` None there may be any number of them. BYTES becomes an object array of `bytes` with all elements;
    validation checks their number. Raises InvalidRequest.
    """
    if type(content) is list:
        return _array_from_list(content, datatype, count, input_name)
    if type(content) is np.ndarray:
        return _array_from_numbers(content, datatype, count, input_name)
    raise InvalidRequest(f"{_PARSE}attempt to access JSON non-array as array")


def _array_from_list(content: list[Any], datatype: Datatype, count: int | None, input_name: str) -> Array:
    types = set(map(type, content))
    if list in types:
        content = _flatten(content, datatype.name)
        types = set(map(type, content))
    kind = datatype.kind
    if not types <= _ELEMENT_TYPES[kind]:
        raise WrongElement((_PARSE_BYTES if kind == "O" else _PARSE) + _EXPECTED[kind])
    if kind == "O":
        return bytes_array([e.encode("utf-8", "surrogateescape") for e in content], (len(content),))
    check_count(len(content), count)
    if kind == "f":
        return _narrowed(np.array(content, np.float64), datatype)
    try:
        return np.array(content, datatype.dtype)
    except OverflowError:
        raise _out_of_range(content, datatype, input_name) from None


def _array_from_numbers(wide: Array, datatype: Datatype, count: int | None, input_name: str) -> Array:
    check_count(wide.size, count)
    if datatype.kind == "f":
        return _narrowed(wide, datatype)
    if datatype.size < 8:
        limits = np.iinfo(datatype.dtype)
        if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
            raise _out_of_range(wide.tolist(), datatype, input_name)
    return wide.astype(datatype.dtype, copy=False)


def _narrowed(wide: Array, datatype: Datatype) -> Array:
    """Doubles as the datatype; a number too large for FP32 becomes an infinity, as in Triton."""
    if datatype.size == 8:
        return wide
    with np.errstate(over="ignore"):
        return wide.astype(datatype.dtype)


def check_count(given: int, expected: int | None) -> None:
    """Raise InvalidRequest unless `given` elements are as many as expected; None: any number is."""
    if expected is None or given == expected:
        return
    hint = f"the shape has {expected} elements, 'data' has {given}"
    if given < expected:
        raise InvalidRequest("Failed to parse 'data' field: shape does not match true shape", hint=hint)
    raise InvalidRequest(f"{_PARSE}Shape does not match true shape of 'data' field", hint=hint)


def _out_of_range(content: list[int], datatype: Datatype, input_name: str) -> InvalidRequest:
    largest = 2**64 if datatype.kind == "u" else 2**63
    if min(content) < -(2**63) or max(content) >= largest:
        return InvalidRequest(_PARSE + _EXPECTED[datatype.kind])
    limits = np.iinfo(datatype.dtype)
    index, value = next((i, v) for i, v in enumerate(content) if not limits.min <= v <= limits.max)
    if datatype.kind == "u" and value < 0:
        return InvalidRequest(_PARSE + _EXPECTED["u"])
    return InvalidRequest(
        f"{_PARSE}element {index} of input '{input_name}' is {value}, which {datatype.name} cannot hold "
        f"({limits.min} to {limits.max})"
    )


def nested_too_deep(datatype_name: Any) -> InvalidRequest:
    """The error for an input's data; Triton finds the depth of strings before it parses them as 'data'."""
    return InvalidRequest(NESTED_TOO_DEEP if datatype_name == "BYTES" else _PARSE + NESTED_TOO_DEEP)


def _flatten(content: list[Any], datatype_name: str) -> list[Any]:
    """All elements of a nested list, row-major. The nesting need not agree with the shape."""
    flat: list[Any] = []
    stack = [iter(content)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                if len(stack) >= MAX_DEPTH - 1:
                    raise nested_too_deep(datatype_name)
                stack.append(iter(element))
                break
            flat.append(element)
        else:
            stack.pop()
    return flat


def json_values(array: Array, datatype: str) -> Array | list[Any]:
    """The values of a tensor for a JSON writer: a flat array, or a list of str for BYTES.

    FP32 is written with the digits of a double, as in Triton. Bytes that are not UTF-8 become lone surrogates, which
    only the lenient writer turns back into these bytes.
    """
    flat = array.reshape(-1)
    if datatype == "FP32":
        with np.errstate(invalid="ignore"):  # signalling NaNs become quiet ones
            return flat.astype(np.float64)
    if datatype == "BYTES":
        return [element.decode("utf-8", "surrogateescape") for element in flat.tolist()]
    if datatype in ("FP16", "BF16"):
        raise InvalidRequest(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    return flat
