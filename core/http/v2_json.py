"""The JSON of a request body as a Python dict, read by the parser that fits its size.

In a large document the numbers under `inputs[].data` become flat numpy arrays, everything else Python values.
Source: docs/spec/http.md sections 1 (texts) and 5; docs/architecture.md section 3 point 6 (why two parsers).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from trident.core.errors import InvalidRequest
from trident.core.http.body import (
    MAX_DEPTH,
    NESTED_TOO_DEEP,
    WIDE,
    flat_numbers,
    parse,
    parse_json,
    plain_value,
    simdjson,
    unique_keys,
)
from trident.core.inference.tensors import BY_NAME, Array, Buffer, Datatype, bytes_array

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
_TAKES = {"b": "true or false", "i": "whole numbers", "u": "whole numbers from 0", "f": "numbers", "O": "strings"}
# The names of the datatypes in numpy and model configurations.
_OTHER_NAMES = {
    **{row.dtype.name: name for name, row in BY_NAME.items() if name not in ("BYTES", "BF16")},
    **{row.config_name.lower(): name for name, row in BY_NAME.items()},
    **{"string": "BYTES", "float": "FP32", "double": "FP64"},
}
ELEMENT_TYPES: dict[str, frozenset[type]] = {
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
    meant = _OTHER_NAMES.get(name.lower()) or (name.upper() if name.upper() in BY_NAME else "")
    text = f"did you mean {meant}?" if meant else f"one of: {', '.join(BY_NAME)}"
    raise InvalidRequest(f"invalid datatype for input {input_name}", hint=text)


def array_from_json(content: Any, datatype: Datatype, count: int | None, input_name: str) -> Array:
    """The flat array of the `count` elements of `content`, a list or an array of the widest type of their kind.

    With `count` None there may be any number of them. BYTES becomes an object array of `bytes` with all elements;
    validation checks their number. Raises InvalidRequest.
    """
    if type(content) is list:
        return _array_from_list(content, datatype, count, input_name)
    if type(content) is np.ndarray:
        check_count(content.size, count)
        if datatype.kind == "f":
            return _narrowed(content, datatype)
        if datatype.size < 8:
            limits = np.iinfo(datatype.dtype)
            if content.size and (content.min() < limits.min or content.max() > limits.max):
                raise _out_of_range(content.tolist(), datatype, input_name)
        return content.astype(datatype.dtype, copy=False)
    raise InvalidRequest(f"{_PARSE}attempt to access JSON non-array as array")


def _array_from_list(content: list[Any], datatype: Datatype, count: int | None, input_name: str) -> Array:
    types = set(map(type, content))
    if list in types:
        flat: list[Any] = []
        stack = [iter(content)]
        while stack:
            for element in stack[-1]:
                if type(element) is list:
                    if len(stack) >= MAX_DEPTH - 1:
                        raise nested_too_deep(datatype.name)
                    stack.append(iter(element))
                    break
                flat.append(element)
            else:
                stack.pop()
        content = flat
        types = set(map(type, content))
    kind = datatype.kind
    if not types <= ELEMENT_TYPES[kind]:
        right = next(i for i, element in enumerate(content) if type(element) not in ELEMENT_TYPES[kind])
        if kind != "O" and count is not None and right >= count:
            check_count(len(content), count)
        raise InvalidRequest(
            (_PARSE_BYTES if kind == "O" else _PARSE) + _EXPECTED[kind],
            hint=f"'data' of '{input_name}', which is {datatype.name}, must have {_TAKES[kind]}",
        )
    if kind == "O":
        return bytes_array([e.encode() for e in content], (len(content),))
    check_count(len(content), count)
    if kind == "f":
        return _narrowed(np.array(content, np.float64), datatype)
    try:
        return np.array(content, datatype.dtype)
    except OverflowError:
        raise _out_of_range(content, datatype, input_name) from None


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


# From this size on simdjson and its buffers are faster (256 floats, 5 KB: 12 µs, orjson 31 µs).
_LARGE = 1024
_BINARY_SIZE = b'"binary_data_size"'
BINARY_WITHOUT_HEADER = (
    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs in "
    "binary data format"
)


def parse_document(text: Buffer, *, binary_follows: bool) -> dict[str, Any]:
    """The document as a dict; {} for another kind of value, whose members are then missing, as in Triton.

    `binary_follows`: the request announced binary data. If it did not and binary data follows the JSON, the error names
    the missing header. Raises InvalidRequest with Triton's prefix, the parser's reason and the offset.
    """
    try:
        is_large = len(text) > _LARGE and simdjson is not None
        document = parse(text, _plain_document) if is_large else orjson.loads(text)
    except (ValueError, RuntimeError):
        if not binary_follows and _has_binary_size(bytes(text)):
            raise InvalidRequest(BINARY_WITHOUT_HEADER) from None
        document = parse_json(text)
    return document if type(document) is dict else {}


def _plain_document(document: Any) -> Any:
    """The document as Python values and arrays. It holds no object of simdjson, whose parser is used again."""
    if not isinstance(document, simdjson.Object):
        return {}
    plain = {key: document[key] if key == "inputs" else plain_value(document[key]) for key in unique_keys(document)}
    inputs = plain.get("inputs")
    if isinstance(inputs, simdjson.Array):
        plain["inputs"] = [_plain_input(i) if isinstance(i, simdjson.Object) else plain_value(i) for i in inputs]
    elif inputs is not None:
        plain["inputs"] = plain_value(inputs)
    return plain


def _plain_input(item: Any) -> dict[str, Any]:
    plain = {key: item[key] if key == "data" else plain_value(item[key]) for key in unique_keys(item)}
    content = plain.get("data")
    if isinstance(content, simdjson.Array):
        plain["data"] = _numbers(content, plain.get("datatype"))
    elif content is not None:
        plain["data"] = plain_value(content)
    return plain


def _numbers(content: Any, datatype: Any) -> Any:
    """The numbers of a nested array as a flat array of the widest type of their kind; a list if one is of another kind.

    simdjson does not tell which element does not fit: the code that reads the list finds it.
    """
    _check_depth(content, datatype)
    row = BY_NAME.get(datatype) if type(datatype) is str else None
    if row is None or row.kind not in WIDE:
        return content.as_list()
    try:
        return flat_numbers(content, row.kind)
    except (TypeError, ValueError):
        return content.as_list()


def _check_depth(content: Any, datatype: Any) -> None:
    """Refuse an array that its first elements show to be nested too deep; the parser itself stops at 1024."""
    depth = 1
    while isinstance(content, simdjson.Array) and len(content):
        if depth == MAX_DEPTH:
            raise nested_too_deep(datatype)
        content = content[0]
        depth += 1


def _has_binary_size(raw: bytes) -> bool:
    """True if `raw` begins with a JSON document that gives binary sizes, and other bytes follow it."""
    if _BINARY_SIZE not in raw:
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(raw.decode("latin-1"))
    except (ValueError, RecursionError):
        return False
    return end < len(raw)
