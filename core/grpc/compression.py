"""The compression of messages.

Source: gRPC's `compression.md`; docs/spec/grpc.md section 6.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trident.core.grpc.status import GrpcError, Status, too_large
from trident.core.inference.tensors import Buffer

IDENTITY: Final = b"identity"
# zlib takes the container of a stream from the window bits.
_CONTAINERS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ENCODINGS: Final = frozenset({IDENTITY, *_CONTAINERS})


@dataclass(frozen=True, slots=True)
class CompressionLevel:
    """A level of responses: zlib's own, and which encoding a client gets that accepts both."""

    effort: int
    encodings: tuple[bytes, ...]


_GZIP_FIRST = (b"gzip", b"deflate")
# gRPC's C core takes the first encoding that the client accepts for the level low, the last one for the others.
LEVELS: dict[str, CompressionLevel | None] = {
    "none": None,
    "low": CompressionLevel(1, _GZIP_FIRST),
    "medium": CompressionLevel(6, _GZIP_FIRST[::-1]),
    "high": CompressionLevel(9, _GZIP_FIRST[::-1]),
}


def response_encoding(level: CompressionLevel | None, accepted: bytes) -> bytes:
    """The encoding of a response, for a client that sent `accepted` as its grpc-accept-encoding."""
    if level is None or not accepted:
        return IDENTITY
    names = {name.strip() for name in accepted.split(b",")}
    return next((encoding for encoding in level.encodings if encoding in names), IDENTITY)


def inflate(message: Buffer, encoding: bytes, limit: int) -> bytes:
    """The message that `message` was compressed from, at most `limit` bytes; no more than that is ever inflated.

    Raises GrpcError.
    """
    if encoding == IDENTITY:
        raise GrpcError(Status.INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding")
    stream = zlib.decompressobj(_CONTAINERS[encoding])
    # zlib takes the limit as a C int of the platform's ssize_t; one more byte than the limit tells that it is reached.
    try:
        content = stream.decompress(message, limit + 1)
    except zlib.error as error:
        raise GrpcError(Status.INTERNAL, f"failed to decompress a message: {error}") from error
    if len(content) > limit:
        raise too_large(len(content), limit)
    if not stream.eof:
        raise GrpcError(Status.INTERNAL, "failed to decompress a message: it ends before the compressed data does")
    if stream.unused_data:
        raise GrpcError(Status.INTERNAL, "failed to decompress a message: there is more after the compressed data")
    return content


def deflate(parts: Sequence[Buffer], encoding: bytes, effort: int) -> bytes:
    """The parts of a message, compressed as one stream."""
    stream = zlib.compressobj(effort, wbits=_CONTAINERS[encoding])
    pieces = [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)
