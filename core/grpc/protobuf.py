"""Messages in protobuf's wire format: parsed with their schema, or written and cut without it.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from trident.core.grpc.status import MalformedMessage
from trident.core.inference.tensors import Buffer


def parse(type_name: str, content: Buffer) -> Any:
    """The message of the type `type_name` of Triton's service. Raises MalformedMessage.

    The first call in a process imports protobuf, which takes tens of milliseconds.
    """
    from trident.core.grpc import schema

    try:
        return getattr(schema.service, type_name).FromString(content if type(content) is bytes else bytes(content))
    except schema.DecodeError:
        raise MalformedMessage from None


def serialized(type_name: str, **fields: Any) -> bytes:
    """A message of the type `type_name` of Triton's service with these fields. Imports protobuf, as `parse`."""
    from trident.core.grpc import schema

    content: bytes = getattr(schema.service, type_name)(**fields).SerializeToString()
    return content


VARINT: Final = 0
LENGTH: Final = 2


def varint(number: int) -> bytes:
    """A number from 0 below 2^64."""
    if number < 128:
        return bytes((number,))
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


@lru_cache(maxsize=1024)
def length_prefix(number: int, size: int) -> bytes:
    """The prefix of the `size` bytes of field `number`."""
    return varint(number << 3 | LENGTH) + varint(size)


def length_field(number: int, content: bytes) -> bytes:
    """A field that is a message or bytes, also if it is empty."""
    return length_prefix(number, len(content)) + content


def string_field(number: int, text: str) -> bytes:
    """A string; nothing for an empty one, as proto3 has it. A lone surrogate becomes a question mark."""
    return length_field(number, text.encode("utf-8", "replace")) if text else b""


def integer_field(number: int, value: int) -> bytes:
    """An int64, uint64 or bool; nothing for 0, as proto3 has it."""
    return varint(number << 3 | VARINT) + varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def packed_integers(number: int, values: tuple[int, ...]) -> bytes:
    """A repeated int64; nothing without values."""
    return length_field(number, b"".join([varint(v & 0xFFFF_FFFF_FFFF_FFFF) for v in values])) if values else b""


def read_length(buffer: Buffer, at: int) -> tuple[int, int]:
    """The number that stands at `at`, below 2^35, and where it ends. Raises ValueError, IndexError at the end."""
    size = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            return size, at
        shift += 7
        if shift > 28:
            raise ValueError("longer than any message")
