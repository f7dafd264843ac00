"""The checksum of an S3 object, from its etag and HeadObject."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping

import pytest

from trident.core.repository.stores.object_store import Checksum, Hash
from trident.core.repository.stores.s3 import content_digest, object_checksum

CONTENT = b"content of an object" * 3
SIZE = len(CONTENT)
PLAIN = hashlib.md5(CONTENT).hexdigest()


def b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def parts_of(part_size: int) -> list[bytes]:
    return [CONTENT[at : at + part_size] for at in range(0, SIZE, part_size)]


def parts_etag(part_size: int) -> str:
    digests = [hashlib.md5(part).digest() for part in parts_of(part_size)]
    return f"{hashlib.md5(b''.join(digests)).hexdigest()}-{len(digests)}"


def ask(
    etag: str, head: Mapping[str, object] | None = None, bucket: str = "b", lengths: tuple[int, ...] = ()
) -> Checksum | None:
    def part_length(number: int) -> int:
        return lengths[number - 1] if number <= len(lengths) else 0

    return object_checksum(head or {}, bucket, etag, SIZE, part_length)


def fits(checksum: Checksum) -> bool:
    """Whether CONTENT has this checksum."""

    def run(pieces: list[bytes]) -> Hash:
        hashed = checksum.make()
        for piece in pieces:
            hashed.update(piece)
        return hashed

    if not checksum.part_size:
        return run([CONTENT[:7], CONTENT[7:]]).hexdigest() == checksum.value
    digests = [bytes.fromhex(run([part]).hexdigest()) for part in parts_of(checksum.part_size)]
    return run(digests).hexdigest() == checksum.value


@pytest.mark.parametrize("head", [{}, {"ServerSideEncryption": "AES256"}])
def test_plain_etag_is_the_md5(head: dict[str, object]) -> None:
    checksum = ask(PLAIN, head)
    assert checksum is not None
    assert checksum.part_size == 0
    assert fits(checksum)


@pytest.mark.parametrize("part_size", [25, 30, SIZE - 1])
def test_multi_part_etag_is_a_checksum_of_parts(part_size: int) -> None:
    checksum = ask(parts_etag(part_size), lengths=tuple(len(part) for part in parts_of(part_size)))
    assert checksum is not None
    assert checksum.part_size == part_size
    assert fits(checksum)


@pytest.mark.parametrize(
    "lengths",
    [(), (0, 0, 0), (SIZE, SIZE, SIZE), (10, 20, 30), (25, 25), (25, 20, 15), (30, 15, 15)],
)
def test_unknown_or_uneven_parts_give_no_checksum(lengths: tuple[int, ...]) -> None:
    """The storage does not tell, or the parts differ in size."""
    assert ask(f"{PLAIN}-3", lengths=lengths) is None


def test_etag_of_a_single_part_gives_no_checksum() -> None:
    assert ask(f"{PLAIN}-1", lengths=(SIZE,)) is None


ENCRYPTED = [
    {"ServerSideEncryption": "aws:kms"},
    {"ServerSideEncryption": "aws:kms:dsse"},
    {"SSECustomerAlgorithm": "AES256"},
]


@pytest.mark.parametrize("head", ENCRYPTED)
@pytest.mark.parametrize("etag", [PLAIN, f"{PLAIN}-2"])
def test_encrypted_object_has_no_md5_in_its_etag(head: dict[str, object], etag: str) -> None:
    assert ask(etag, head, lengths=(40, 20)) is None


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("SHA256", hashlib.sha256(CONTENT).digest()),
        ("SHA1", hashlib.sha1(CONTENT).digest()),
        ("CRC32", zlib.crc32(CONTENT).to_bytes(4, "big")),
    ],
)
def test_stored_checksum_replaces_the_etag(name: str, digest: bytes) -> None:
    checksum = ask(PLAIN, {**ENCRYPTED[0], f"Checksum{name}": b64(digest), "ChecksumType": "FULL_OBJECT"})
    assert checksum is not None
    assert checksum.name == name
    assert fits(checksum)


def test_stored_checksum_of_parts_is_used() -> None:
    digests = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts_of(40))
    composite = f"{b64(zlib.crc32(digests).to_bytes(4, 'big'))}-2"
    checksum = ask("x", {"ChecksumCRC32": composite, "ChecksumType": "COMPOSITE"}, lengths=(40, 20))
    assert checksum is not None
    assert checksum.part_size == 40
    assert fits(checksum)


@pytest.mark.parametrize(
    "head",
    [
        {"ChecksumCRC32": "AAAA"},
        {"ChecksumCRC32": "not base64!"},
        {"ChecksumCRC32": 7},
        {"ChecksumCRC32": "AAAAAA==-0"},
        {"ChecksumCRC32": "AAAAAA==", "ChecksumType": "COMPOSITE"},
        {"ChecksumCRC32C": "AAAAAA=="},
        {"ChecksumCRC64NVME": "AAAAAAAAAAA="},
    ],
)
def test_checksum_that_cannot_be_computed_is_none(head: dict[str, object]) -> None:
    assert ask("x", head) is None


def test_md5_etag_is_the_digest() -> None:
    assert content_digest("b", PLAIN) == f"md5:{PLAIN}"
    assert content_digest("b", f"{PLAIN}-2") == ""
    assert content_digest("b", PLAIN.upper()) == ""


def test_etag_of_a_directory_bucket_is_no_digest() -> None:
    assert content_digest("b--use1-az4--x-s3", PLAIN) == ""
    assert ask(PLAIN, bucket="b--use1-az4--x-s3") is None
