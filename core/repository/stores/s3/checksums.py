"""The checksum of an S3 object, read from its etag and the answer to HeadObject, without network or SDK.

Source: "Checking object integrity" in the Amazon S3 user guide (etags, full-object and composite checksums).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping

from core.repository.stores.object_store import Checksum, Hash

_PLAIN_ETAG = re.compile(r"[0-9a-f]{32}")
_PARTS_ETAG = re.compile(r"([0-9a-f]{32})-([0-9]{1,5})")
_COMPOSITE = re.compile(r"([A-Za-z0-9+/=]+)-([0-9]{1,5})")
_DIRECTORY_BUCKET = "--x-s3"


class Crc32:
    """zlib's CRC-32 with the interface of hashlib; its digest is big-endian, as S3 writes it."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, content: bytes | memoryview, /) -> None:
        self._value = zlib.crc32(content, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _md5() -> Hash:
    # Not for security: an interpreter in FIPS mode would refuse it otherwise.
    return hashlib.md5(usedforsecurity=False)


# The best first. CRC32C and CRC64NVME are left out because no installed package computes them.
_ALGORITHMS: tuple[tuple[str, Callable[[], Hash]], ...] = (
    ("SHA256", hashlib.sha256),
    ("SHA1", hashlib.sha1),
    ("CRC32", Crc32),
)


def content_digest(bucket: str, etag: str) -> str:
    """`md5:<hex>` for an etag in the form of an MD5, else empty.

    The etag of an object encrypted by KMS or a customer's key is not its MD5 but is still unique to each upload, so it
    can identify the content. Directory buckets do not guarantee that.
    """
    plain = _PLAIN_ETAG.fullmatch(etag) and not bucket.endswith(_DIRECTORY_BUCKET)
    return f"md5:{etag}" if plain else ""


def object_checksum(
    head: Mapping[str, object], bucket: str, etag: str, size: int, part_length: Callable[[int], int]
) -> Checksum | None:
    """The best checksum of an object of `size` bytes with `etag`; None if no checksum can be computed.

    `head` is the answer to HeadObject with ChecksumMode. `part_length(n)` asks for the length of part n in bytes,
    counted from 1; it returns 0 if the storage does not tell.
    """
    if not bucket.endswith(_DIRECTORY_BUCKET) and not _hides_md5(head):
        if _PLAIN_ETAG.fullmatch(etag):
            return Checksum("MD5", etag, _md5)
        # A single part is not accepted: MinIO without strict compatibility makes up such etags.
        parts = _PARTS_ETAG.fullmatch(etag)
        part_size = _part_size(size, int(parts[2]), part_length) if parts and int(parts[2]) > 1 else 0
        if parts and part_size:
            return Checksum("MD5 of the parts' MD5", parts[1], _md5, part_size)
    for name, make in _ALGORITHMS:
        found = _stated(head, name, make, size, part_length)
        if found is not None:
            return found
    return None


def _hides_md5(head: Mapping[str, object]) -> bool:
    """Whether the object is encrypted in a way that makes its etag differ from the MD5 of the content."""
    return head.get("ServerSideEncryption") not in (None, "AES256") or bool(head.get("SSECustomerAlgorithm"))


def _stated(
    head: Mapping[str, object], name: str, make: Callable[[], Hash], size: int, part_length: Callable[[int], int]
) -> Checksum | None:
    """The checksum that S3 stored at the upload, of the content or of its parts' digests."""
    stated = head.get(f"Checksum{name}")
    if not isinstance(stated, str):
        return None
    composite = _COMPOSITE.fullmatch(stated)
    value = _hex(composite[1] if composite else stated)
    if len(value) != len(make().hexdigest()):
        return None
    if composite is None:
        return None if head.get("ChecksumType") == "COMPOSITE" else Checksum(name, value, make)
    part_size = _part_size(size, int(composite[2]), part_length)
    return Checksum(f"{name} of the parts' {name}", value, make, part_size) if part_size else None


def _hex(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).hex()
    except binascii.Error:
        return ""


def _part_size(size: int, count: int, part_length: Callable[[int], int]) -> int:
    """The size of each part except the last, in bytes; 0 if it is unknown or differs between parts."""
    if count < 1:
        return 0
    if count == 1:
        return size
    first = part_length(1)
    last = size - (count - 1) * first
    if not 0 < last <= first:
        return 0
    # With three or more parts the first does not determine the others: the uploader may choose any sizes.
    return first if count == 2 or part_length(count) == last else 0
