"""The JSON of a request body as a Python dict, read by the parser that fits its size.

In a large document the numbers under `inputs[].data` become flat numpy arrays, everything else Python values.
Source: docs/spec/http.md sections 1 (texts) and 5; docs/architecture.md section 3 point 6 (why two parsers).
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import orjson

from core.errors import InvalidRequest
from core.http.json_parser import parse, simdjson
from core.http.slices.encoding import has_word, is_ascii, is_utf8
from core.http.slices.json_array import STRICT, Judge
from core.http.slices.outline import Outline, outline_of
from core.http.slices.slicing import Slicing
from core.http.slices.wrong_element import WrongElement
from core.http.v2.json_tensors import MAX_DEPTH, NESTED_TOO_DEEP, nested_too_deep
from core.inference.tensors import BY_NAME, Buffer

# From this size on simdjson and its buffers are faster (256 floats, 5 KB: 12 µs, orjson 31 µs).
_LARGE = 1024
# simdjson's names of the three number types, by numpy's kind, and the numpy type of the buffer that it fills.
WIDE = {"i": ("i", np.dtype(np.int64)), "u": ("u", np.dtype(np.uint64)), "f": ("d", np.dtype(np.float64))}
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')
_PREFIX = "failed to parse the request JSON buffer: "
# A whole string, or an unfinished one to the end, so that no match starts inside a string; or the word itself.
_INFINITY = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|Inf(?:inity)?', re.DOTALL)
# What makes `_parse_lenient` look further than the strict parser.
_BINARY_SIZE = b'"binary_data_size"'
_LENIENT = (b"NaN", b"Inf", _BINARY_SIZE)
BINARY_WITHOUT_HEADER = (
    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs in "
    "binary data format"
)


class NotStrict(Exception):
    """A text is no JSON for the fast parsers, and only these were to read it."""


def parse_document(text: Buffer, *, binary_follows: bool, is_strict: bool = False) -> dict[str, Any]:
    """The document as a dict; {} for another kind of value, whose members are then missing, as in Triton.

    `is_strict`: only the fast parsers read it, and raise NotStrict. The others take ten times as long.

    `binary_follows`: the request announced binary data. If it did not and binary data follows the JSON, the error names
    the missing header. Raises InvalidRequest with Triton's prefix, the parser's reason and the offset.
    """
    try:
        is_large = len(text) > _LARGE and simdjson is not None
        document = parse(text, _plain_document) if is_large else orjson.loads(text)
    except (ValueError, RuntimeError):
        if is_strict:
            raise NotStrict from None
        document = _parse_lenient(text, binary_follows)
    return document if type(document) is dict else {}


def outline_document(text: memoryview, slicing: Slicing) -> Outline | None:
    """The outline of a document, with a SlicedArray in the place of each long array under `inputs[].data`.

    None if there is no such array, or if the text has to be read as a whole. The slices are not parsed here. The
    document is None if the text is found to be no JSON.
    """
    outline = outline_of(text, _DATA, slicing, whole_elements=False, may_be_broken=True)
    if outline is None or outline.document is None:
        return outline
    if type(outline.document) is not dict:
        return None
    inputs = outline.document.get("inputs")
    for item in inputs if type(inputs) is list else ():
        array = outline.take(item.get("data")) if type(item) is dict else None
        if array is not None:
            item["data"] = array
    return outline if outline.is_taken() else None


def read_slice(text: bytes, datatype: str) -> Any:
    """The content of one slice of an array, as `parse_document` gives that of a whole one. Raises InvalidRequest."""
    try:
        return parse(text, lambda content: _numbers(content, datatype))
    except (ValueError, RuntimeError):
        return _parse_lenient(text, binary_follows=True)


def error_in_slices(
    text: memoryview, outline: Outline, slicing: Slicing, found: InvalidRequest | None = None
) -> InvalidRequest | None:
    """The error of the whole text, one of whose slices is no JSON or has the error `found`.

    None if it cannot be told from the slices: then the whole text has to be parsed, during which nothing else runs.
    """
    if is_ascii(text, slicing) and not has_word(_LENIENT, text, slicing):
        judge = STRICT
    elif len(outline.arrays) == 1 and outline.document is not None and _is_judged_leniently(text, slicing):
        judge = _LENIENT_JUDGE
    else:
        return None
    fault = outline.fault(judge)
    if fault is not None:
        return InvalidRequest(f"{_PREFIX}{fault.reason} at {fault.offset}")
    return found if type(found) is WrongElement and outline.is_read() else None


def _is_judged_leniently(text: memoryview, slicing: Slicing) -> bool:
    """Whether the strict parser refuses a text before it looks at it, so that the lenient one has the last word."""
    return not is_utf8(text, slicing) and not has_word((_BINARY_SIZE,), text, slicing)


def _plain_document(document: Any) -> Any:
    """The document as Python values and arrays. It holds no object of simdjson, whose parser is used again."""
    if not isinstance(document, simdjson.Object):
        return {}
    plain = {key: document[key] if key == "inputs" else _plain(document[key]) for key in _keys(document)}
    inputs = plain.get("inputs")
    if isinstance(inputs, simdjson.Array):
        plain["inputs"] = [_plain_input(i) if isinstance(i, simdjson.Object) else _plain(i) for i in inputs]
    elif inputs is not None:
        plain["inputs"] = _plain(inputs)
    return plain


def _plain_input(item: Any) -> dict[str, Any]:
    plain = {key: item[key] if key == "data" else _plain(item[key]) for key in _keys(item)}
    content = plain.get("data")
    if isinstance(content, simdjson.Array):
        plain["data"] = _numbers(content, plain.get("datatype"))
    elif content is not None:
        plain["data"] = _plain(content)
    return plain


def _numbers(content: Any, datatype: Any) -> Any:
    """The numbers of a nested array as a flat array of the widest type of their kind; a list if one is of another kind.

    simdjson does not tell which element does not fit: the code that reads the list finds it.
    """
    _check_depth(content, datatype)
    row = BY_NAME.get(datatype) if type(datatype) is str else None
    wide = WIDE.get(row.kind) if row is not None else None
    if wide is None:
        return content.as_list()
    letter, dtype = wide
    try:
        return np.frombuffer(content.as_buffer(of_type=letter), dtype)
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


def _keys(value: Any) -> list[str]:
    """The keys of a simdjson object, for subscripts: `items` would turn every number into a Python object."""
    keys = list(value.keys())
    if len(set(keys)) != len(keys):
        # simdjson would take the first value, orjson takes the last: the meaning must not depend on the size.
        raise ValueError("a key is given twice")
    if any("\0" in key for key in keys):
        raise ValueError("a subscript ends at NUL: it would find another key's value")
    return keys


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _parse_lenient(text: Buffer, binary_follows: bool) -> Any:
    """Parse what the fast parsers refuse and Triton accepts.

    This is NaN, Inf and Infinity, strings that are not UTF-8, and integers beyond 64 bits, which simdjson lacks.
    """
    raw = bytes(text)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason, offset = error.msg.partition(":")[0], error.pos
    if "depth limit" in reason:
        raise InvalidRequest(NESTED_TOO_DEEP)
    if not binary_follows and _has_binary_size(raw):
        raise InvalidRequest(BINARY_WITHOUT_HEADER)
    if b"NaN" in raw or b"Inf" in raw or "UTF-8" in reason:
        try:
            return json.loads(_lenient_text(raw))
        except RecursionError:
            raise InvalidRequest(NESTED_TOO_DEEP) from None
        except ValueError as error:
            if isinstance(error, json.JSONDecodeError):
                reason, offset = error.msg, error.pos
    raise InvalidRequest(f"{_PREFIX}{reason} at {offset}")


def _lenient_text(raw: bytes) -> str:
    """What `json` reads of a text that begins outside strings."""
    return _INFINITY.sub(_spell_out, raw).decode("utf-8", "surrogateescape")


def _spell_out(found: re.Match[bytes]) -> bytes:
    """`Inf` outside strings, as `json` spells it."""
    return b"Infinity" if found[0] == b"Inf" else found[0]


def _has_binary_size(raw: bytes) -> bool:
    """Whether `raw` begins with a JSON document that gives binary sizes, and other bytes follow it."""
    if _BINARY_SIZE not in raw:
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(raw.decode("latin-1"))
    except (ValueError, RecursionError):
        return False
    return end < len(raw)


_LENIENT_JUDGE = Judge(lambda raw: json.loads(_lenient_text(raw)), lambda raw: len(_lenient_text(raw)))
