"""Parses JSON into Python values, including the NaN and Infinity that Python's `json` writes."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from core.errors import InvalidRequest
from core.http.slices.encoding import has_word, is_ascii, is_utf8
from core.http.slices.json_array import Fault
from core.http.slices.slicing import Slicing
from core.http.v2.json_tensors import NESTED_TOO_DEEP
from core.inference.tensors import Buffer

_PREFIX: Final = "failed to parse the request JSON buffer: "
# Words that the second parser knows.
_WORDS = (b"NaN", b"Infinity")


def parse_json(text: Buffer, location: str = "") -> Any:
    """Parse `text`. The bare words NaN and Infinity are numbers.

    Raises InvalidRequest with the reason and the offset; the text begins with `location` if that is given.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason, offset = error.msg.partition(":")[0], error.pos
    prefix = f"{location}: " if location else ""
    # orjson allocates enough for any valid document of that length; only unclosed brackets need more.
    if "depth limit" in reason or "allocate memory" in reason:
        raise InvalidRequest(prefix + NESTED_TOO_DEEP)
    raw = bytes(text)
    if b"NaN" in raw or b"Infinity" in raw:
        try:
            return json.loads(raw)
        except RecursionError:
            raise InvalidRequest(prefix + NESTED_TOO_DEEP) from None
        except ValueError as error:
            if isinstance(error, json.JSONDecodeError):
                reason, offset = error.msg, error.pos
    raise InvalidRequest(f"{prefix}{_PREFIX}{reason} at {offset}")


def error_in_slices(text: memoryview, fault: Fault | None, slicing: Slicing) -> InvalidRequest | None:
    """The error of `parse_json` for a long text in whose slices `fault` was found; None if they do not tell."""
    if not is_utf8(text, slicing):
        return InvalidRequest(f"{_PREFIX}str is not valid UTF-8 at 0")
    if fault is None or "allocate memory" in fault.reason:
        return None
    if not is_ascii(text, slicing) or has_word(_WORDS, text, slicing):
        return None
    return InvalidRequest(f"{_PREFIX}{fault.reason} at {fault.offset}")
