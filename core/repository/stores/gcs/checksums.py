"""The checksums that Cloud Storage keeps of an object: MD5, and CRC32C for composed objects.

Source: Cloud Storage's JSON API, fields `md5Hash` and `crc32c` of an object.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from functools import partial

import google_crc32c

from core.repository.stores.object_store import Checksum

_MD5_BYTES = 16
_CRC32C_BYTES = 4


class Crc32c:
    """A running CRC32C with the interface of hashlib; the package's own class returns its hexdigest as bytes."""

    def __init__(self) -> None:
        self._running = google_crc32c.Checksum()

    def update(self, content: bytes | memoryview, /) -> None:
        self._running.update(bytes(content))  # it accepts only bytes

    def hexdigest(self) -> str:
        return str(self._running.digest().hex())


def content_digest(md5: str | None) -> str:
    """The digest of a listed object, `md5:<hex>`, from its `md5Hash`; empty without a valid one."""
    value = _hex(md5, _MD5_BYTES)
    return f"md5:{value}" if value else ""


def md5_checksum(digest: str) -> Checksum:
    """The checksum that a digest from `content_digest` names."""
    # Not for security: an interpreter in FIPS mode would refuse it otherwise.
    return Checksum("md5", digest.removeprefix("md5:"), partial(hashlib.md5, usedforsecurity=False))


def crc32c_checksum(crc32c: str | None) -> Checksum | None:
    """The checksum from an object's `crc32c` field; None without a valid one."""
    value = _hex(crc32c, _CRC32C_BYTES)
    return Checksum("crc32c", value, Crc32c) if value else None


def _hex(encoded: str | None, size: int) -> str:
    """A base64 checksum in hex; empty if it is missing, malformed or not `size` bytes long."""
    try:
        value = base64.b64decode(encoded or "", validate=True)
    except binascii.Error:
        return ""
    return value.hex() if len(value) == size else ""
