"""Bodies: gzip and deflate (a zlib stream) of requests and responses, and the JSON of small requests.

Source: docs/spec/http.md sections 1 (texts), 6 "Compression", 7 (limit) and 8.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import orjson

from trident.core.errors import InvalidRequest
from trident.core.http.errors import BrokenCompression, UnsupportedEncoding
from trident.core.http.reply import Environ
from trident.core.inference.tensors import Buffer

IDENTITY: Final = "identity"
# zlib takes the container of a stream from the window bits.
_CONTAINERS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_EITHER_CONTAINER: Final = 32 + zlib.MAX_WBITS
_ENCODINGS: Final = (IDENTITY, "deflate", "gzip")


def decompress(body: Buffer, encoding: str, limit: int) -> Buffer:
    """The decompressed body, at most `limit` bytes; no more than that is ever inflated.

    The body itself tells which of the two containers it has, as in Triton. Raises UnsupportedEncoding,
    BrokenCompression, and InvalidRequest for a body that is empty or too large.
    """
    name = encoding.strip().lower()
    if name in (IDENTITY, ""):
        return body
    if name not in _CONTAINERS:
        raise UnsupportedEncoding
    if not body:
        raise InvalidRequest("nothing to be decompressed")
    stream = zlib.decompressobj(_EITHER_CONTAINER)
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise BrokenCompression(error) from error
    if len(content) > limit:
        raise InvalidRequest(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    if not stream.eof:
        raise BrokenCompression("it ends before the compressed data does")
    if stream.unused_data:
        raise BrokenCompression("there is more after the compressed data")
    return content


def compress(parts: Iterable[Buffer], encoding: str) -> bytes:
    """The parts of a body, compressed as one stream. `encoding` is gzip or deflate."""
    stream = zlib.compressobj(wbits=_CONTAINERS[encoding])
    pieces = [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)


@lru_cache(maxsize=512)
def choose(accepted: str | None, supported: tuple[str, ...]) -> str | None:
    """The member of `supported` that a header such as Accept prefers; None if it accepts none of them.

    The highest quality wins, then the first in the header, then the first in `supported`. The quality of a type is that
    of the closest range that matches it. A missing header accepts anything; items that are malformed are ignored.
    """
    given: dict[str, tuple[float, int]] = {}
    for position, item in enumerate((accepted or "*/*").split(",")):
        name, _, parameters = item.partition(";")
        given.setdefault(name.strip().lower(), (_quality(parameters), -position))
    best, chosen = (0.0, -len(accepted or "*/*")), None
    for each in supported:
        # Java's HttpURLConnection sends a mere `*` unless it is told otherwise.
        ranges = (each, each.partition("/")[0] + "/*", "*/*", "*")
        rank = next((given[name] for name in ranges if name in given), best)
        if rank[0] > 0 and rank > best:
            best, chosen = rank, each
    return chosen


def _quality(parameters: str) -> float:
    """The value of `q`: 1 without it, 0 if it is not a number from 0 to 1."""
    for each in parameters.split(";"):
        name, _, text = each.partition("=")
        if name.strip().lower() == "q":
            try:
                return quality if (quality := float(text)) <= 1 else 0.0
            except ValueError:
                return 0.0
    return 1.0


def choose_encoding(accepted: str) -> str:
    """The encoding that an Accept-Encoding header prefers, of identity, deflate and gzip."""
    return choose(accepted, _ENCODINGS) or IDENTITY


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
