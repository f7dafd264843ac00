"""S3Store and GcsStore with their emulators: listings, ranges, changed objects. For Azure: test_azure.py."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.repository.gcs_emulator import GcsEmulator, store_at
from tests.contract.repository.s3_emulator import S3Emulator, leave_aws
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.location import parse_location
from trident.core.repository.stores.object_store import ObjectStore, S3Credential, StoredObject
from trident.core.repository.stores.s3 import S3Store

MIB = 1 << 20
WEIGHTS = os.urandom(2 * MIB + MIB // 2)  # more than one piece


@dataclass
class Bucket:
    """The bucket of a test."""

    emulator: S3Emulator | GcsEmulator
    name: str

    def put(self, key: str, content: bytes) -> None:
        self.emulator.put(self.name, key, content)

    def store(self, prefix: str = "models", name: str = "") -> ObjectStore:
        path = f"{name or self.name}/{prefix}"
        if isinstance(self.emulator, GcsEmulator):
            return store_at(f"gs://{path}")
        return S3Store(parse_location(f"s3://{self.emulator.address}/{path}"), S3Credential("AKIAEXAMPLE", "secret"))


@pytest.fixture(params=["s3", "gcs"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    leave_aws(monkeypatch, tmp_path)
    found = Bucket(request.getfixturevalue(request.param), f"bucket-{hash(request.node.name) % 10**8}")
    if isinstance(found.emulator, GcsEmulator):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", found.emulator.endpoint)
    return found


def only(store: ObjectStore, prefix: str = "") -> StoredObject:
    (found,) = store.list(prefix)
    return found


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(each.key for each in store.list(prefix))


def test_keys_are_relative_without_folder_markers(bucket: Bucket) -> None:
    odd = "m/1/a b+c%20é&=?#<>.bin"
    for key in ("top.txt", "m/config.pbtxt", odd, "m/", "m/2/", "m2/x", "placeholder/"):
        bucket.put(f"models/{key}", b"" if key.endswith("/") else b"1234")
    bucket.put("models2/n/x", b"")
    store = bucket.store("models/")
    assert keys(store) == sorted(["top.txt", "m/config.pbtxt", odd, "m2/x"])
    assert keys(store, "m/") == sorted(["m/config.pbtxt", odd])
    assert sorted(store.folders()) == ["m", "m2", "placeholder"]
    assert b"".join(store.read(only(store, "m/1/"), 0, 4)) == b"1234"
    root = bucket.store("")
    assert sorted(root.folders()) == ["models", "models2"]
    assert keys(root, "models2/") == ["models2/n/x"]
    assert list(root.read(only(root, "models2/"), 0, 0)) == []


def test_ranges_are_read_in_pieces_and_the_md5_is_listed(bucket: Bucket) -> None:
    bucket.put("models/m/model.onnx", WEIGHTS)
    store, size = bucket.store(), len(WEIGHTS)
    wanted = only(store)
    assert wanted == StoredObject("m/model.onnx", size, wanted.tag, f"md5:{hashlib.md5(WEIGHTS).hexdigest()}")
    for start, stop in [(0, size), (0, 1), (1, 2), (5, 5 + MIB), (size - 3, size), (0, size - 1), (7, 7), (size, size)]:
        pieces = list(store.read(wanted, start, stop))
        assert b"".join(pieces) == WEIGHTS[start:stop]
        assert max(map(len, pieces), default=0) <= MIB
    checksum = store.checksum(wanted)
    assert checksum is not None
    running = checksum.make()
    running.update(WEIGHTS)
    assert (checksum.part_size, running.hexdigest()) == (0, checksum.value)


def test_object_that_changed_since_the_listing_is_not_read(bucket: Bucket) -> None:
    bucket.put("models/m", b"first")
    store = bucket.store()
    wanted = only(store)
    bucket.put("models/m", b"other, longer")
    assert only(store).tag != wanted.tag
    with pytest.raises(
        RepositoryUnavailable, match=r"models/m was changed (or removed after it was|since it was) listed"
    ):
        list(store.read(wanted, 0, 5))
    bucket.emulator.delete(bucket.name, "models/m")
    with pytest.raises(RepositoryUnavailable, match=r"removed (after|since) it was listed"):
        list(store.read(wanted, 0, 5))


def test_missing_bucket_is_named(bucket: Bucket) -> None:
    for use in (lambda store: list(store.list()), lambda store: list(store.folders())):
        with pytest.raises(RepositoryUnavailable, match=r"bucket '?(gs://)?missing'?"):
            use(bucket.store(name="missing"))
