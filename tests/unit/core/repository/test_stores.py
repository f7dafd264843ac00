"""Object stores: calls, checksums, bodies, names, and credentials that are renewed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.core.errors import ConfigInvalid, RepositoryUnavailable
from trident.core.repository.location import parse_location
from trident.core.repository.stores.gcs import crc32c_checksum
from trident.core.repository.stores.object_store import (
    AzureCredential,
    Checksum,
    CloudCredentials,
    GcsCredential,
    Hash,
    ObjectStore,
    RenewedStore,
    StoredObject,
    TransientError,
    paths_problem,
    read_cloud_credentials,
)
from trident.core.repository.stores.s3 import S3Call, content_digest, object_checksum, safe_text


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "1/../../x",
        "1//x",
        "1/./x",
        "a\0b",
        "x" * 256,
        "ü" * 128,
        "1/\udcff\ud800",
        "a/..",
    ],
)
def test_invalid_path_is_refused(path: str) -> None:
    assert paths_problem(["good", path]) is not None


@pytest.mark.parametrize(
    ("paths", "refused"),
    [
        (["a", "a/b"], True),
        (["a/b/c", "a/b"], True),
        (["a", "a/"], True),
        (["a/b", "a/c", "ab"], False),
        (["1/", "2/x"], False),
        (["1//"], True),
        (["/"], True),
    ],
)
def test_path_that_is_both_file_and_folder_is_refused(paths: list[str], refused: bool) -> None:
    assert (paths_problem(paths) is not None) is refused


@given(st.text(st.sampled_from("./\\\0aü\ud800"), max_size=12))
def test_accepted_path_stays_inside_its_folder(path: str) -> None:
    if paths_problem([path]) is None:
        inside = os.path.normpath(Path("/cache/model") / path)
        assert inside == f"/cache/model/{path.removesuffix('/')}"


OBJECT = StoredObject("a", 1, "t")


class Keyed:
    """A store that accepts only the key "good"."""

    def __init__(self, key: str) -> None:
        self.location = "memory"
        self._key = key

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        yield OBJECT
        self._check()

    def folders(self) -> Iterator[str]:
        self._check()
        yield "a"

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        self._check()
        yield b"x"

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        self._check()
        return None

    def _check(self) -> None:
        if self._key != "good":
            raise RepositoryUnavailable(f"refused {self._key}")


class File:
    """A credential file, and the keys that stores were made with."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.made: list[str] = []

    def read(self) -> str:
        if self.key == "unreadable":
            raise ConfigInvalid("unreadable")
        return self.key

    def make(self, key: str) -> ObjectStore:
        self.made.append(key)
        if key == "unusable":
            raise RepositoryUnavailable("unusable key")
        return Keyed(key)


USES: list[Callable[[ObjectStore], object]] = [
    lambda store: list(store.list()),
    lambda store: list(store.folders()),
    lambda store: list(store.read(OBJECT, 0, 1)),
    lambda store: store.checksum(OBJECT),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("first", ["old", "unusable"])
def test_failure_is_transient_if_the_credential_has_changed(use: Callable[[ObjectStore], object], first: str) -> None:
    file = File(first)
    store: ObjectStore = RenewedStore("memory", file.read, file.make)
    file.key = "good"
    with pytest.raises(TransientError):
        use(store)
    use(store)
    use(store)
    assert file.made == [first, "good"]


@pytest.mark.parametrize("then", ["old", "unreadable"])
def test_failure_is_final_if_the_credential_has_not_changed(then: str) -> None:
    file = File("old")
    store = RenewedStore("memory", file.read, file.make)
    file.key = then
    for _ in range(2):
        with pytest.raises(RepositoryUnavailable, match="refused old"):
            list(store.folders())
    assert file.made == ["old"]


SECRET = "wJalrXUtnFEMI-example-secret"


def read(folder: Path, document: object) -> CloudCredentials:
    path = folder / "credentials.json"
    path.write_text(json.dumps(document))
    return read_cloud_credentials(str(path))


def s3(**fields: str) -> dict[str, object]:
    return {"s3": {"": fields}}


def test_prefix_without_a_slash_matches_longer_bucket_names(tmp_path: Path) -> None:
    credentials = read(tmp_path, {"gs": {"": "a", "gs://b/": "b", "gs://c": "c"}})
    found = [credentials.credentials_for(parse_location(text)) for text in ("gs://b", "gs://bb", "gs://cc")]
    assert found == [GcsCredential("b"), GcsCredential("a"), GcsCredential("c")]


def test_the_account_of_azure_may_have_its_host(tmp_path: Path) -> None:
    credentials = read(tmp_path, {"as": {"": {}, "as://zoo.blob.core.windows.net/models": {"account_key": SECRET}}})
    assert credentials.credentials_for(parse_location("as://zoo/models/a")) == AzureCredential(account_key=SECRET)
    assert credentials.credentials_for(parse_location("as://zoo/other")) == AzureCredential()
    assert SECRET not in f"{credentials}"


def test_repr_hides_secrets(tmp_path: Path) -> None:
    credentials = read(tmp_path, s3(key_id="AKIAIOSFODNN7EXAMPLE", secret_key=SECRET, session_token=SECRET))
    shown = f"{credentials} {credentials.s3['']!r} {credentials.s3['']}"
    assert SECRET not in shown
    assert "AKIA" not in shown
    assert "…MPLE" in shown


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (f'{{"s3": {{"": {{"secret_key": "{SECRET}"'.encode(), "is not JSON (line 1"),
        (SECRET.encode(), "is not JSON"),
        (SECRET.encode() + b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (f'["{SECRET}"]'.encode(), "is not a JSON object"),
        (f'{{"s3": "{SECRET}"}}'.encode(), "section 's3'"),
        (f'{{"s3": {{"": "{SECRET}"}}}}'.encode(), "entry 1 of section 's3'"),
        (f'{{"s3": {{"{SECRET}": {{"key_id": 1}}}}}}'.encode(), "'key_id' is not a string"),
        (f'{{"s3": {{"": {{"secret_key": ["{SECRET}"]}}}}}}'.encode(), "'secret_key' is not a string"),
        (f'{{"s3": {{"": {{"secret_key": "{SECRET}"}}}}}}'.encode(), "'secret_key' but no 'key_id'"),
        (b'{"s3": {"": {}, "x": {"key_id": "k"}}}', "entry 2 of section 's3'"),
        (f'{{"gs": {{"": {{"x": "{SECRET}"}}}}}}'.encode(), "entry 1 of section 'gs'"),
        (b'{"as": {"": {"auth_type": "password"}}}', "'auth_type' must be one of key, managed_identity, default"),
        (b" " * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_malformed_file_is_named_and_not_quoted(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "credentials.json"
    path.write_bytes(content)
    with pytest.raises(ConfigInvalid) as caught:
        read_cloud_credentials(str(path))
    assert says in caught.value.message
    assert str(path) in caught.value.message
    assert SECRET not in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.__cause__ is None


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="No such file"):
        read_cloud_credentials(str(tmp_path / "none.json"))


def test_messages_are_one_line_without_secrets() -> None:
    call = S3Call("s3:GetObject", "s3://b/a\nERROR all is lost", "b", "a\nERROR all is lost")
    for error in (call.refused("anonymous", "X", "Y"), call.failed("anonymous", "X", "Y"), call.gone("removed")):
        assert "\n" not in f"{error.message}{error.hint}"
    assert safe_text("the key hunter2\r\nis\x00 wrong", ("hunter2", "")) == "the key [secret] is  wrong"
    assert len(safe_text("x" * 10_000, ())) == 500


HASHED = b"content of an object" * 3
SIZE = len(HASHED)
PLAIN = hashlib.md5(HASHED).hexdigest()


def b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def parts_of(part_size: int) -> list[bytes]:
    return [HASHED[at : at + part_size] for at in range(0, SIZE, part_size)]


def ask(
    etag: str, head: Mapping[str, object] | None = None, bucket: str = "b", lengths: tuple[int, ...] = ()
) -> Checksum | None:
    def part_length(number: int) -> int:
        return lengths[number - 1] if number <= len(lengths) else 0

    return object_checksum(head or {}, bucket, etag, SIZE, part_length)


def fits(checksum: Checksum) -> bool:
    """True if HASHED has this checksum."""

    def run(pieces: list[bytes]) -> Hash:
        hashed = checksum.make()
        for piece in pieces:
            hashed.update(piece)
        return hashed

    if not checksum.part_size:
        return run([HASHED[:7], HASHED[7:]]).hexdigest() == checksum.value
    digests = [bytes.fromhex(run([part]).hexdigest()) for part in parts_of(checksum.part_size)]
    return run(digests).hexdigest() == checksum.value


def test_etag_that_is_not_an_md5_gives_no_digest() -> None:
    assert ask(f"{PLAIN}-1", lengths=(SIZE,)) is None
    assert content_digest("b", PLAIN) == f"md5:{PLAIN}"
    assert content_digest("b", f"{PLAIN}-2") == ""
    assert content_digest("b", PLAIN.upper()) == ""
    assert content_digest("b--use1-az4--x-s3", PLAIN) == ""
    assert ask(PLAIN, bucket="b--use1-az4--x-s3") is None


ENCRYPTED = [
    {"ServerSideEncryption": "aws:kms"},
    {"ServerSideEncryption": "aws:kms:dsse"},
    {"SSECustomerAlgorithm": "AES256"},
]


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("SHA256", hashlib.sha256(HASHED).digest()),
        ("SHA1", hashlib.sha1(HASHED).digest()),
        ("CRC32", zlib.crc32(HASHED).to_bytes(4, "big")),
    ],
)
def test_stored_checksum_replaces_the_etag(name: str, digest: bytes) -> None:
    checksum = ask(PLAIN, {**ENCRYPTED[0], f"Checksum{name}": b64(digest), "ChecksumType": "FULL_OBJECT"})
    assert checksum is not None
    assert checksum.name == name
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


NINE_DIGITS = b"123456789"
# The check value of CRC-32C (Castagnoli) for this content.
CRC32C = bytes.fromhex("e3069283")


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def test_checksums_hash_pieces_to_their_values() -> None:
    checksum = crc32c_checksum(encoded(CRC32C))
    assert checksum is not None
    running = checksum.make()
    running.update(NINE_DIGITS[:4])
    running.update(memoryview(NINE_DIGITS)[4:])
    assert running.hexdigest() == checksum.value == CRC32C.hex()


@pytest.mark.parametrize("crc32c", [None, "", "no base64!", encoded(b"too long a value")])
def test_crc32c_checksum_is_none_without_a_valid_value(crc32c: str | None) -> None:
    assert crc32c_checksum(crc32c) is None
