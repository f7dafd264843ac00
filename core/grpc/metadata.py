"""The metadata of a call: header fields that are the caller's own, as text or, if the name ends with -bin, as bytes.

Source: gRPC's `PROTOCOL-HTTP2.md`, "Custom-Metadata".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Final

from core.grpc.status import GrpcError, Status
from core.grpc.transport import Fields

_BINARY = b"-bin"
# Fields of the protocol itself.
_RESERVED: Final = frozenset({b"te", b"content-type", b"user-agent"})
_RESERVED_PREFIXES: Final = (b":", b"grpc-")


class Metadata:
    """Names are in lower case; one that was sent several times has its values in their order."""

    __slots__ = ("fields",)

    def __init__(self, fields: Fields) -> None:
        self.fields = tuple(field for field in fields if not field[0].startswith(b":"))

    def text(self, name: str) -> str | None:
        """The value of `name` as Latin-1, several joined by commas; None without it."""
        key = name.encode("latin-1", "replace").lower()
        values = [value for found, value in self.fields if found == key]
        return b",".join(values).decode("latin-1") if values else None

    def binary(self, name: bytes) -> list[bytes]:
        """The values of a name that ends with -bin. Raises GrpcError if one is not base64."""
        return [each for found, value in self.fields if found == name for each in decode_binary(value)]


def is_custom(name: bytes) -> bool:
    """Whether a field belongs to the caller, not to HTTP/2 or gRPC."""
    return name not in _RESERVED and not name.startswith(_RESERVED_PREFIXES)


def decode_binary(value: bytes) -> list[bytes]:
    """The values in one -bin field: base64 with or without its padding; several are separated by commas."""
    try:
        return [b64decode(each + b"=" * (-len(each) % 4), validate=True) for each in value.split(b",")]
    except Base64Error as error:
        raise GrpcError(Status.INTERNAL, f"binary metadata is not base64: {error}") from error


def encode_binary(value: bytes) -> bytes:
    """A value of a -bin field, without padding."""
    return b64encode(value).rstrip(b"=")
