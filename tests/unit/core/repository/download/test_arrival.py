"""Files that are opened while the large ones of them are still being verified."""

from __future__ import annotations

import random
import threading
from collections import deque
from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import PIECE, MemoryStore, downloader
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cache import ModelCache, Snapshot
from trident.core.repository.download import Downloader
from trident.core.repository.progress import DownloadProgress
from trident.core.repository.stores.object_store import Checksum, StoredObject

LARGE = random.Random(1).randbytes(95 * PIECE + 17)  # ten parts
DAMAGED = bytes(len(LARGE))
PATH = "1/model.onnx"


class SlowlyVerified(MemoryStore):
    """Its listing has no digests, and its checksums are known when `known` is set."""

    def __init__(self) -> None:
        super().__init__({f"m/{PATH}": LARGE, "m/config.pbtxt": b"small"}, digests=False)
        self.known = threading.Event()

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        if wanted.key == f"m/{PATH}":
            assert self.known.wait(60)
        return super().checksum(wanted)

    def damage(self, times: int) -> None:
        """The next `times` downloads of the large object have other bytes."""
        self.damaged[f"m/{PATH}"] = deque([DAMAGED] * 10 * times)


@pytest.fixture
def store() -> SlowlyVerified:
    return SlowlyVerified()


def listed(store: MemoryStore) -> dict[str, StoredObject]:
    return {stored.key.removeprefix("m/"): stored for stored in store.list("m/")}


def is_cached(cache: Path, store: MemoryStore) -> bool:
    """Whether another server that uses the cache would find the model there."""
    contents = listed(store)
    snapshot: Snapshot = ModelCache(cache).snapshot(store.location, "m", contents)
    try:
        return snapshot.holds(contents)
    finally:
        snapshot.release()


def test_large_file_can_be_opened_before_it_is_verified(tmp_path: Path, store: SlowlyVerified) -> None:
    arrival = downloader(tmp_path).fetch(store, "m", 1, listed(store))
    file = arrival.snapshot.path / PATH
    assert file.read_bytes() == LARGE
    inode = file.stat().st_ino
    assert not is_cached(tmp_path, store)
    store.known.set()
    assert arrival.verify()
    assert file.stat().st_ino == inode
    assert is_cached(tmp_path, store)
    assert list((tmp_path / "parts").iterdir()) == []
    arrival.release()


def test_file_of_one_part_is_verified_before_it_can_be_opened(tmp_path: Path, store: SlowlyVerified) -> None:
    """A configuration, or the code of a model, must not be read before."""
    store.known.set()
    store.damaged["m/config.pbtxt"] = deque([b"other"])
    arrival = downloader(tmp_path).fetch(store, "m", 1, listed(store))
    assert (arrival.snapshot.path / "config.pbtxt").read_bytes() == b"small"
    assert arrival.verified() is arrival.snapshot
    arrival.release()


def test_damaged_file_is_replaced_and_has_to_be_opened_again(tmp_path: Path, store: SlowlyVerified) -> None:
    store.damage(times=1)
    arrival = downloader(tmp_path).fetch(store, "m", 1, listed(store))
    with (arrival.snapshot.path / PATH).open("rb") as opened:
        store.known.set()
        assert not arrival.verify()
        # Whoever has mapped it into memory must not lose the pages.
        assert opened.read() == DAMAGED
    assert (arrival.snapshot.path / PATH).read_bytes() == LARGE
    assert is_cached(tmp_path, store)
    arrival.release()
    again = downloader(tmp_path).fetch(store, "m", 1, listed(store))
    assert again.verify()
    again.release()


def test_file_that_stays_damaged_is_not_kept(tmp_path: Path, store: SlowlyVerified) -> None:
    store.damage(times=2)
    arrival = downloader(tmp_path).fetch(store, "m", 1, listed(store))
    store.known.set()
    with pytest.raises(RepositoryUnavailable, match=f"'m/{PATH}' arrived damaged from memory://bucket, twice"):
        arrival.verify()
    arrival.release()
    assert not arrival.snapshot.path.exists()
    downloader(tmp_path).fetch(store, "m", 1, listed(store)).verified().release()
    assert is_cached(tmp_path, store)


def test_released_snapshot_is_held_until_it_is_verified(tmp_path: Path, store: SlowlyVerified) -> None:
    over = downloader(tmp_path, max_bytes=1)
    arrival = over.fetch(store, "m", 1, listed(store))
    arrival.release()
    over.cache.trim()
    assert (arrival.snapshot.path / PATH).exists()
    store.known.set()
    assert arrival.verify()


def test_stop_ends_the_verification(tmp_path: Path, store: SlowlyVerified) -> None:
    over = downloader(tmp_path)
    arrival = over.fetch(store, "m", 1, listed(store))
    over.stop()
    store.known.set()
    with pytest.raises(RepositoryUnavailable, match="was stopped"):
        arrival.verify()
    arrival.release()
    assert not is_cached(tmp_path, store)
    # All bytes are there: another start reads none of them again.
    read = store.read_bytes
    downloader(tmp_path).fetch(store, "m", 1, listed(store)).verified().release()
    assert store.read_bytes == read


def test_disk_without_links_waits_for_the_verification(tmp_path: Path, store: SlowlyVerified) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    store.known.set()
    over = Downloader(ModelCache(tmp_path, link=no_links), DownloadProgress(), parallel=4, part_bytes=10 * PIECE)
    arrival = over.fetch(store, "m", 1, listed(store))
    assert is_cached(tmp_path, store)
    assert arrival.verified().path.joinpath(PATH).read_bytes() == LARGE
    arrival.release()
