"""The checksums in the answers of Cloud Storage's JSON API."""

from __future__ import annotations

import base64
import hashlib

import pytest

from trident.core.repository.stores.gcs import content_digest, crc32c_checksum, md5_checksum

CONTENT = b"123456789"
# The check value of CRC-32C (Castagnoli) for this content.
CRC32C = bytes.fromhex("e3069283")


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def test_digest_names_the_md5_in_hex() -> None:
    md5 = hashlib.md5(CONTENT, usedforsecurity=False)
    assert content_digest(encoded(md5.digest())) == f"md5:{md5.hexdigest()}"


@pytest.mark.parametrize("md5", [None, "", "no base64!", encoded(b"short")])
def test_digest_is_empty_without_a_valid_md5(md5: str | None) -> None:
    assert content_digest(md5) == ""


def test_md5_checksum_hashes_to_its_value() -> None:
    digest = content_digest(encoded(hashlib.md5(CONTENT, usedforsecurity=False).digest()))
    checksum = md5_checksum(digest)
    running = checksum.make()
    running.update(CONTENT)
    assert running.hexdigest() == checksum.value


def test_crc32c_checksum_hashes_pieces_to_its_value() -> None:
    checksum = crc32c_checksum(encoded(CRC32C))
    assert checksum is not None
    running = checksum.make()
    running.update(CONTENT[:4])
    running.update(memoryview(CONTENT)[4:])
    assert running.hexdigest() == checksum.value == CRC32C.hex()


@pytest.mark.parametrize("crc32c", [None, "", "no base64!", encoded(b"too long a value")])
def test_crc32c_checksum_is_none_without_a_valid_value(crc32c: str | None) -> None:
    assert crc32c_checksum(crc32c) is None
