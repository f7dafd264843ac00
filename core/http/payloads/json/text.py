"""JSON text to Python values, leniently where Python's own writer is lenient."""

from __future__ import annotations

import json
from typing import Any

import orjson

from core.errors import InvalidRequest
from core.http.v2.json_tensors import NESTED_TOO_DEEP
from core.inference.tensors import Buffer


def parse_json(text: Buffer, location: str = "") -> Any:
    """The value. The bare words NaN and Infinity, which Python's `json` writes, are read as numbers.

    Raises InvalidRequest with the reason and the offset, after `location` where there is one.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason, offset = error.msg.partition(":")[0], error.pos
    prefix = f"{location}: " if location else ""
    # orjson's memory is as much as a valid document of that length can need: only brackets left open need more.
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
