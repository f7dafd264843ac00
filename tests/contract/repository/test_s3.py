"""S3Store with `moto_server` over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.repository.s3_emulator import S3Emulator, leave_aws
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.location import parse_location
from trident.core.repository.stores.object_store import Checksum, ObjectStore, S3Credential, StoredObject
from trident.core.repository.stores.s3 import S3Store

MIB = 1 << 20
PART = 5 * MIB
KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI-example-secret"
CREDENTIAL = S3Credential(KEY_ID, SECRET)


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave_aws(monkeypatch, tmp_path)


def open_store(s3: S3Emulator, path: str, credential: S3Credential | None = CREDENTIAL) -> ObjectStore:
    return S3Store(parse_location(f"s3://{s3.address}/{path}"), credential)


def only(objects: Iterator[StoredObject]) -> StoredObject:
    (found,) = objects
    return found


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(each.key for each in store.list(prefix))


def hashed(checksum: Checksum, content: bytes) -> str:
    """Computed by the rule in Checksum."""
    if not checksum.part_size:
        whole = checksum.make()
        whole.update(content)
        return whole.hexdigest()
    over_parts = checksum.make()
    for at in range(0, len(content), checksum.part_size):
        part = checksum.make()
        part.update(content[at : at + checksum.part_size])
        over_parts.update(bytes.fromhex(part.hexdigest()))
    return over_parts.hexdigest()


def test_listing_of_several_pages_is_complete(s3: S3Emulator) -> None:
    """A page of S3 has 1,000 keys or folders."""
    names = [f"m{number:04}/config.pbtxt" for number in range(1005)]
    s3.make_bucket("many")
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda name: s3.put("many", f"models/{name}", b""), names):
            pass
    store = open_store(s3, "many/models")
    assert keys(store) == names
    assert sorted(store.folders()) == [name.partition("/")[0] for name in names]
    assert keys(store, "m0007/") == ["m0007/config.pbtxt"]


def test_object_that_changed_since_the_listing_has_no_checksum(s3: S3Emulator) -> None:
    s3.put("moving", "m/1/model.onnx", b"first")
    store = open_store(s3, "moving")
    wanted = only(store.list())
    s3.put("moving", "m/1/model.onnx", b"other")
    with pytest.raises(RepositoryUnavailable, match="changed"):
        store.checksum(wanted)
    s3.delete("moving", "m/1/model.onnx")
    with pytest.raises(RepositoryUnavailable, match="removed"):
        store.checksum(wanted)


@pytest.mark.parametrize("sizes", [(PART, 1), (PART, PART), (PART, PART, 100)])
def test_upload_in_parts_has_a_checksum(s3: S3Emulator, sizes: Sequence[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    s3.put_multipart("parts", "m/model.onnx", parts)
    store = open_store(s3, "parts")
    wanted = only(store.list())
    assert wanted.digest == ""
    checksum = store.checksum(wanted)
    assert checksum is not None
    assert checksum.part_size == PART
    content = b"".join(parts)
    assert hashed(checksum, content) == checksum.value
    assert hashed(checksum, content[:-1] + bytes([content[-1] ^ 1])) != checksum.value


def test_upload_in_unequal_parts_has_no_checksum(s3: S3Emulator) -> None:
    s3.put_multipart("uneven", "m/model.onnx", [bytes(PART), bytes(PART + 1), b"x"])
    store = open_store(s3, "uneven")
    assert store.checksum(only(store.list())) is None


def test_access_without_credentials_is_anonymous(s3: S3Emulator) -> None:
    s3.put("public", "m/private", b"")
    s3.client.put_bucket_acl(Bucket="public", ACL="public-read")
    s3.client.put_object(Bucket="public", Key="m/x", Body=b"content", ACL="public-read")
    store = open_store(s3, "public", None)
    private, public = sorted(store.list(), key=lambda each: each.key)
    assert b"".join(store.read(public, 0, 7)) == b"content"
    for use in (lambda: list(store.read(private, 0, 0)), lambda: store.checksum(private)):
        with pytest.raises(RepositoryUnavailable, match=r"s3:GetObject on .*/public/m/private as anonymous") as caught:
            use()
        assert "it needs the permission s3:GetObject on arn:aws:s3:::public/m/private" in caught.value.message


@pytest.mark.parametrize("form", ["s3://{}/forms/models", "s3://http://{}//forms/models/"])
def test_endpoint_may_be_in_the_uri(s3: S3Emulator, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    s3.put("forms", "models/m/x", b"")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    store = S3Store(parse_location(form.format(s3.address)), CREDENTIAL)
    assert store.location == f"s3://{s3.address}/forms/models"
    assert keys(store) == ["m/x"]


def test_endpoint_may_be_in_the_environment(s3: S3Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("forms", "models/m/x", b"")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    assert keys(S3Store(parse_location("s3://forms/models"), CREDENTIAL)) == ["m/x"]
