"""Where archives are found: below a folder, and in a store in memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import MemoryStore, downloader
from trident.app.emulators.report import Interrupted
from trident.app.emulators.sagemaker.archives import ArchiveStorage, CloudArchives, LocalArchives
from trident.app.emulators.sagemaker.errors import ApiError
from trident.core.errors import RepositoryUnavailable, ServerError
from trident.core.repository.cloud_sources import ObjectFolder, ObjectStoreSource
from trident.core.repository.sources import Source, SourceOpener, SourceOptions
from trident.core.repository.stores.object_store import TransientError

CONTENTS = {"a.tar.gz": b"one", "a.tar.gz.md5": b"sum", "sub/b.tar.gz": b"two", "notes.txt": b"text"}
NO_KEYS = (
    "nothing.tar.gz",
    "sub",
    "../outside.tar.gz",
    "sub/../a.tar.gz",
    "./a.tar.gz",
    "/etc/passwd",
    "sub//b.tar.gz",
    "a.tar.gz/",
    "a\0b",
    "a" * 1000,
    "link.tar.gz",
)


class MemoryOpener(SourceOpener):
    """Opens `store`, whatever the address."""

    def __init__(self, folder: Path, store: MemoryStore) -> None:
        super().__init__(SourceOptions(cache_directory=folder, cache_bytes=0))
        self._store = store
        self._loads = downloader(folder)

    def open_folder(self, text: str) -> ObjectFolder:
        return ObjectFolder(self._store, self._loads)

    def open(self, text: str, *, any_layout: bool = False, single_model: str = "") -> Source:
        return ObjectStoreSource(self._store, self._loads, MemoryStore({"archives/x": b""}, location="memory://bucket"))

    def stop(self) -> None:
        self._loads.stop()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(CONTENTS, location="memory://bucket/archives")


@pytest.fixture(params=["local", "cloud"])
def storage(request: pytest.FixtureRequest, store: MemoryStore, tmp_path: Path) -> ArchiveStorage:
    if request.param == "cloud":
        return CloudArchives(MemoryOpener(tmp_path / "cache", store), "s3://bucket/archives", threading.Event())
    for key, content in CONTENTS.items():
        path = tmp_path / "archives" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "outside.tar.gz").write_bytes(b"not of this endpoint")
    (tmp_path / "archives" / "link.tar.gz").symlink_to("../outside.tar.gz")
    return LocalArchives(tmp_path / "archives")


@pytest.mark.parametrize("key", ["a.tar.gz", "sub/b.tar.gz"])
def test_an_archive_is_on_the_disk_while_it_is_used(storage: ArchiveStorage, key: str) -> None:
    with storage.archive(key) as path:
        assert path.read_bytes() == CONTENTS[key]


@pytest.mark.parametrize("key", NO_KEYS)
def test_an_invalid_key_is_the_callers_error(storage: ArchiveStorage, key: str) -> None:
    with pytest.raises(ApiError) as refusal, storage.archive(key):
        pass
    assert (refusal.value.status, refusal.value.kind) == (400, "ValidationError")


def test_a_cloud_archive_is_fetched_when_it_is_used_and_only_once(tmp_path: Path, store: MemoryStore) -> None:
    archives = CloudArchives(MemoryOpener(tmp_path, store), "s3://bucket/archives", threading.Event())
    assert (archives.count, archives.location, store.reads) == (2, "memory://bucket/archives", [])
    for _ in range(2):
        with archives.archive("a.tar.gz"):
            pass
    assert [key for key, _, _ in store.reads] == ["a.tar.gz"]
    store.put("new.tar.gz", b"added later")
    with archives.archive("new.tar.gz") as path:
        assert path.read_bytes() == b"added later"


def test_a_prefix_without_archives_is_refused(tmp_path: Path) -> None:
    def refused(contents: dict[str, bytes]) -> ServerError:
        opener = MemoryOpener(tmp_path, MemoryStore(contents, location="memory://bucket/archvies"))
        with pytest.raises(ServerError) as refusal:
            CloudArchives(opener, "s3://bucket/archvies", threading.Event())
        return refusal.value

    assert refused({}).message == "there is nothing in memory://bucket/archvies"
    assert refused({}).hint == "did you mean memory://bucket/archives?"
    assert refused({"notes.txt": b""}).message == "there is no .tar.gz archive in memory://bucket/archvies"


def test_a_failed_fetch_is_the_callers_error_and_one_after_the_end_that_of_the_endpoint(
    tmp_path: Path, store: MemoryStore
) -> None:
    archives = CloudArchives(MemoryOpener(tmp_path, store), "s3://bucket/archives", threading.Event())
    store.listing_faults.append(RepositoryUnavailable("no access"))
    with pytest.raises(ApiError, match="Failed to download model data: no access"), archives.archive("a.tar.gz"):
        pass
    archives.close()
    with pytest.raises(ApiError, match="being deleted"), archives.archive("a.tar.gz"):
        pass


def test_a_listing_ends_with_the_emulator(tmp_path: Path, store: MemoryStore) -> None:
    store.listing_faults.append(TransientError("not now"))
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(Interrupted):
        CloudArchives(MemoryOpener(tmp_path, store), "s3://bucket/archives", stopped)
