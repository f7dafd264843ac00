"""The small JSON bodies of the routes that go through Flask, read with a size limit.

Source: docs/spec/http.md sections 1 (texts), 7 (limit) and 8.
"""

from __future__ import annotations

from typing import Any

import orjson

from core.errors import InvalidRequest
from core.http.reply import Environ

_RAISE_LIMIT = "Use --http-max-input-size to increase the limit."


def read_body(environ: Environ, limit: int, cure: str = _RAISE_LIMIT) -> bytes:
    """The whole body. Raises InvalidRequest, whose text ends with `cure`, for more than `limit` bytes."""
    announced = environ.get("CONTENT_LENGTH") or ""
    if announced.isdigit() and len(announced) < 20 and int(announced) > limit:
        raise too_large(announced, limit, cure)
    content = read_input(environ, limit + 1)
    if len(content) > limit:
        raise too_large(f"more than {limit}", limit, cure)
    return content


def read_input(environ: Environ, most: int = -1) -> bytes:
    """At most `most` bytes of the body in `wsgi.input`; -1: all of it. A server that does not end the input at the end
    of the body announces its length."""
    if "wsgi.input_terminated" not in environ:
        announced = environ.get("CONTENT_LENGTH") or ""
        length = int(announced[:19]) if announced.isdecimal() else 0
        most = length if most < 0 else min(most, length)
    content: bytes = environ["wsgi.input"].read(most)
    return content


def read_object(environ: Environ, limit: int, cure: str = _RAISE_LIMIT) -> dict[str, Any]:
    """The JSON object in the body, {} for an empty body. Raises InvalidRequest with Triton's texts."""
    content = read_body(environ, limit, cure)
    if not content:
        return {}
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        reason = error.msg.partition(":")[0]
        raise InvalidRequest(f"failed to parse the request JSON buffer: {reason} at {error.pos}") from error
    if not isinstance(document, dict):
        raise InvalidRequest("attempt to access JSON non-object as object")
    return document


def read_parameters(environ: Environ, limit: int) -> dict[str, Any]:
    """The object under `parameters` in the body, {} without it."""
    parameters = read_object(environ, limit).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("Unable to parse 'parameters': attempt to access JSON non-object as object")
    return parameters


def too_large(size: str, limit: int, cure: str = _RAISE_LIMIT) -> InvalidRequest:
    return InvalidRequest(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. {cure}"
    )
