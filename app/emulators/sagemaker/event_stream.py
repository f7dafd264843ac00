"""The framing of a streamed answer of the runtime API.

    total length | headers length | checksum of both | headers | payload | checksum of all before
Numbers have 32 bits, big-endian. A header is its name with an 8-bit length, the type 7 (text), and its value with a
16-bit length.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import orjson

MEDIA_TYPE = "application/vnd.amazon.eventstream"
LARGEST_PART = 1 << 20
"""Bytes of payload in one event; the SDK refuses events of more than 24 MiB."""

_OCTETS = "application/octet-stream"
_TEXT = 7
_OVERHEAD = 16


def payload_part(body: bytes) -> bytes:
    """The event for a part of the container's answer, at most LARGEST_PART bytes."""
    return encode({":message-type": "event", ":event-type": "PayloadPart", ":content-type": _OCTETS}, body)


def stream_error(message: str, code: str) -> bytes:
    """The event that ends a stream that the container broke off."""
    headers = {":message-type": "exception", ":exception-type": "ModelStreamError", ":content-type": "application/json"}
    return encode(headers, orjson.dumps({"Message": message, "ErrorCode": code}))


def encode(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode one event. Names have at most 255 bytes, values 32,767."""
    block = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    prelude = struct.pack(">II", _OVERHEAD + len(block) + len(payload), len(block))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + block + payload
    return message + struct.pack(">I", zlib.crc32(message))


def _header(name: bytes, value: bytes) -> bytes:
    return struct.pack(f">B{len(name)}sBH", len(name), name, _TEXT, len(value)) + value
