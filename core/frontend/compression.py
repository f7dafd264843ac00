"""Compressed bodies and messages. Source: docs/spec/http.md section 6 "Compression"; docs/spec/grpc.md section 6."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from trident.core.inference.tensors import Buffer

# zlib takes the container of a stream from the window bits.
CONTAINERS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
EITHER_CONTAINER: Final = 32 + zlib.MAX_WBITS


def inflate(content: Buffer, container: int, limit: int) -> bytes | None:
    """The inflated content, or None if it has more than `limit` bytes; no more than that is ever inflated.

    Raises ValueError that says what is wrong with the content.
    """
    stream = zlib.decompressobj(container)
    try:
        # One byte more than the limit tells that it is reached.
        inflated = stream.decompress(content, limit + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(inflated) > limit:
        return None
    if not stream.eof:
        raise ValueError("it ends before the compressed data does")
    if stream.unused_data:
        raise ValueError("there is more after the compressed data")
    return inflated


def deflate(parts: Iterable[Buffer], encoding: str, effort: int = zlib.Z_DEFAULT_COMPRESSION) -> bytes:
    """The parts of a content as one stream. `encoding` is gzip or deflate, `effort` zlib's level."""
    stream = zlib.compressobj(effort, wbits=CONTAINERS[encoding])
    pieces = [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)
