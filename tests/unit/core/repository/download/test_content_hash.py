"""Checksums over the whole content and over its parts."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.core.repository.partial_file import ContentHash, digest_checksum
from trident.core.repository.stores.object_store import Checksum


def md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


@given(st.binary(max_size=60), st.integers(0, 20), st.integers(1, 25))
def test_checksum_does_not_depend_on_the_pieces(content: bytes, part_size: int, piece: int) -> None:
    made = ContentHash(Checksum("md5", "", hashlib.md5, part_size))
    for at in range(0, len(content), piece):
        made.update(content[at : at + piece])
    if part_size:
        parts = [content[at : at + part_size] for at in range(0, len(content), part_size)] or [b""]
        assert made.value() == md5(b"".join(map(md5, parts))).hex()
    else:
        assert made.value() == md5(content).hex()


def test_digest_gives_a_checksum_of_the_content() -> None:
    checksum = digest_checksum("md5:" + md5(b"abc").hex().upper())
    assert checksum is not None
    made = ContentHash(checksum)
    made.update(b"abc")
    assert made.value() == checksum.value


@pytest.mark.parametrize("digest", ["", "md5", "md5:", "crc32c:00000000", "nothing:12"])
def test_digest_that_identifies_no_content_gives_none(digest: str) -> None:
    assert digest_checksum(digest) is None
