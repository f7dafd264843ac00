"""Parses JSON into Python values, including the NaN and Infinity that Python's `json` writes."""

from __future__ import annotations

import json
from typing import Any

import orjson

from core.errors import InvalidRequest
from core.http.v2.json_tensors import NESTED_TOO_DEEP
from core.inference.tensors import Buffer


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
    raise InvalidRequest(f"{prefix}failed to parse the request JSON buffer: {reason} at {offset}")
