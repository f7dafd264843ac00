"""The JSON of a request body to a Python dict, by the parser that fits its size.

In a large document the arrays under `inputs[].data` stay simdjson's, to be read as buffers; everything else is plain.
Source: spec/http.md sections 1 (texts) and 5; architecture section 3 point 6 (why two parsers).
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import simdjson

from core.errors import InvalidRequest
from core.http.json_tensors import NESTED_TOO_DEEP
from core.tensors import Buffer

# From this size on simdjson and its buffers win (256 floats, 5 KB: 12 µs against orjson's 31).
_LARGE = 1024
_PREFIX = "failed to parse the request JSON buffer: "
# A string, whole or (so that no search starts in the middle of one) up to the end; or the word that is looked for.
_INFINITY = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|Inf(?:inity)?', re.DOTALL)
_NO_HEADER = (
    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs in "
    "binary data format"
)


def parse_document(text: Buffer, *, binary_follows: bool) -> dict[str, Any]:
    """The document as a dict ({} if it is another kind of value: its members are then missing, as in Triton).

    `binary_follows` says that the request announced binary data; if it did not and some stands behind the JSON, the
    error says which header is missing. Raises InvalidRequest with Triton's prefix, the parser's reason and the offset.
    """
    try:
        document = _parse_large(text) if len(text) > _LARGE else orjson.loads(text)
    except (ValueError, RuntimeError):
        document = _parse_lenient(text, binary_follows)
    return document if type(document) is dict else {}


def _parse_large(text: Buffer) -> Any:
    # A new parser each time: keeping one would keep ten times the largest document seen, and saves a tenth of the time.
    document = simdjson.Parser().parse(text)
    if not isinstance(document, simdjson.Object):
        return {}
    plain = _members(document, kept="inputs")
    inputs = plain.get("inputs")
    if isinstance(inputs, simdjson.Array):
        plain["inputs"] = [_members(i, kept="data") if isinstance(i, simdjson.Object) else _plain(i) for i in inputs]
    elif inputs is not None:
        plain["inputs"] = _plain(inputs)
    return plain


def _members(value: Any, kept: str) -> dict[str, Any]:
    """The members of a simdjson object as Python values, but for the one called `kept`.

    By `keys` and subscript: `items` would turn everything into Python values, the numbers one by one.
    """
    keys = list(value.keys())
    if len(set(keys)) != len(keys):
        # Here the first would count, in orjson the last: what a request means must not depend on its size.
        raise ValueError("a key is given twice")
    return {key: value[key] if key == kept else _plain(value[key]) for key in keys}


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _parse_lenient(text: Buffer, binary_follows: bool) -> Any:
    """What the fast parsers refuse and Triton's accepts.

    That is NaN, Inf and Infinity, strings that are not UTF-8, and integers beyond 64 bits (simdjson has none).
    """
    raw = bytes(text)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason, offset = error.msg.partition(":")[0], error.pos
    if "depth limit" in reason:
        raise InvalidRequest(NESTED_TOO_DEEP)
    if not binary_follows and _has_binary_size(raw):
        raise InvalidRequest(_NO_HEADER)
    if b"NaN" in raw or b"Inf" in raw or "UTF-8" in reason:
        try:
            return json.loads(_INFINITY.sub(_spell_out, raw).decode("utf-8", "surrogateescape"))
        except RecursionError:
            raise InvalidRequest(NESTED_TOO_DEEP) from None
        except ValueError as error:
            if isinstance(error, json.JSONDecodeError):
                reason, offset = error.msg, error.pos
    raise InvalidRequest(f"{_PREFIX}{reason} at {offset}")


def _spell_out(found: re.Match[bytes]) -> bytes:
    """`Inf` outside of strings as `json` knows it."""
    return b"Infinity" if found[0] == b"Inf" else found[0]


def _has_binary_size(raw: bytes) -> bool:
    """Whether a JSON document that names binary sizes stands at the start of `raw`, with other bytes behind it."""
    if b'"binary_data_size"' not in raw:
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(raw.decode("latin-1"))
    except (ValueError, RecursionError):
        return False
    return end < len(raw)
