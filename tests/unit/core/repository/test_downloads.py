"""Downloads, from a store with prepared failures, their retries, and their progress in the log and the metrics."""

from __future__ import annotations

import hashlib
import logging
import random
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import PIECE, Fault, MemoryStore, downloader, lost, md5
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cache import Snapshot
from trident.core.repository.cloud_sources import Downloader
from trident.core.repository.progress import DownloadProgress, DownloadSnapshot
from trident.core.repository.stores.object_store import Checksum, StoredObject

LARGE = random.Random(1).randbytes(95 * PIECE + 17)  # ten parts
SMALL = b"small"


def listed(store: MemoryStore) -> dict[str, StoredObject]:
    return {stored.key.removeprefix("m/"): stored for stored in store.list("m/")}


def fetch(over: Downloader, store: MemoryStore) -> Snapshot:
    return over.fetch(store, "m", 1, listed(store))


def contents(snapshot: Snapshot) -> dict[str, bytes]:
    return {
        str(path.relative_to(snapshot.path)): path.read_bytes() for path in snapshot.path.rglob("*") if path.is_file()
    }


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore({"m/1/model.onnx": LARGE, "m/config.pbtxt": SMALL, "m/1/empty": b""})


WHOLE = {"1/model.onnx": LARGE, "config.pbtxt": SMALL, "1/empty": b""}


def leftovers(cache: Path) -> list[str]:
    found = [path.name for path in (cache / "parts").iterdir() if path.suffix != ".lock"]
    return found + [path.name for path in (cache / "models").iterdir() if "." in path.name and path.suffix != ".lock"]


def test_read_resumes_where_it_broke(tmp_path: Path, store: MemoryStore) -> None:
    pauses: list[float] = []
    store.fail("m/1/model.onnx", lost(3 * PIECE), Fault(2 * PIECE), lost(0), lost(PIECE))
    over = downloader(tmp_path, part_bytes=1 << 20, pauses=pauses)
    assert contents(fetch(over, store)) == WHOLE
    starts = [start for key, start, _ in store.reads if key == "m/1/model.onnx"]
    assert starts == [0, 3 * PIECE, 5 * PIECE, 5 * PIECE, 6 * PIECE]
    assert store.read_bytes == len(LARGE) + len(SMALL)
    assert pauses == [0.2, 0.2, 0.4, 0.2]  # restarted after each attempt that made progress
    assert over.progress.snapshot().retries_total == 4


@pytest.mark.parametrize("digests", [True, False])
def test_damaged_object_is_downloaded_again(
    tmp_path: Path, store: MemoryStore, digests: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store.digests = digests
    store.damaged["m/1/model.onnx"] = deque([bytes(len(LARGE))])
    assert contents(fetch(downloader(tmp_path), store)) == WHOLE
    assert store.read_bytes == 2 * len(LARGE) + len(SMALL)
    assert "arrived damaged" in caplog.text


def test_object_that_is_damaged_twice_fails_the_download(tmp_path: Path, store: MemoryStore) -> None:
    store.damaged["m/config.pbtxt"] = deque([b"smelt"] * 2)
    with pytest.raises(RepositoryUnavailable, match="checksum md5 expected eb5c1399a871211c7e7ed732d15e3a8b, got "):
        fetch(downloader(tmp_path), store)
    assert contents(fetch(downloader(tmp_path), store)) == WHOLE


@pytest.mark.parametrize("is_right", [True, False])
def test_checksum_of_the_storage_overrides_a_wrong_digest(tmp_path: Path, store: MemoryStore, is_right: bool) -> None:
    value = hashlib.sha256(SMALL if is_right else LARGE).hexdigest()
    store.checksum = lambda wanted: Checksum("sha256", value, hashlib.sha256)  # type: ignore[method-assign]
    claimed = {"config.pbtxt": StoredObject("m/config.pbtxt", 5, "1", f"md5:{'0' * 32}")}
    with nullcontext() if is_right else pytest.raises(RepositoryUnavailable, match=r"damaged .*twice: checksum sha256"):
        assert contents(downloader(tmp_path).fetch(store, "m", 1, claimed)) == {"config.pbtxt": SMALL}


@pytest.mark.parametrize("part_size", [0, 999, 10 * PIECE, 64_000, 200_000])
def test_checksum_of_a_multi_part_upload_is_verified(tmp_path: Path, store: MemoryStore, part_size: int) -> None:
    """Its parts differ from those of the download."""
    store.digests = False
    parts = [LARGE[at : at + part_size] for at in range(0, len(LARGE), part_size)] if part_size else []
    value = md5(b"".join(bytes.fromhex(md5(part)) for part in parts)) if parts else md5(LARGE)
    store.checksum = lambda wanted: Checksum("md5", value.upper(), hashlib.md5, part_size)  # type: ignore[method-assign]
    large = {"1/model.onnx": store.object("m/1/model.onnx")}
    assert contents(downloader(tmp_path).fetch(store, "m", 1, large)) == {"1/model.onnx": LARGE}


def test_wrong_digest_does_not_identify_the_content(tmp_path: Path, store: MemoryStore) -> None:
    """An etag that only looks like an MD5, and a storage without checksums: no other object may use this content."""
    other = MemoryStore({"m/config.pbtxt": b"smelt"}, location="memory://other", checksums=False)
    claimed = {"config.pbtxt": StoredObject("m/config.pbtxt", 5, "1", store.object("m/config.pbtxt").digest)}
    over = downloader(tmp_path)
    assert contents(over.fetch(other, "m", 1, claimed)) == {"config.pbtxt": b"smelt"}
    assert contents(fetch(over, store)) == WHOLE
    assert contents(over.fetch(other, "n", 1, claimed)) == {"config.pbtxt": b"small"}  # the object that has this digest
    assert len(other.reads) == 1


def test_download_works_without_checksums(tmp_path: Path, store: MemoryStore) -> None:
    store.digests = store.checksums = False
    assert contents(fetch(downloader(tmp_path), store)) == WHOLE
    assert contents(fetch(downloader(tmp_path), store)) == WHOLE
    assert store.read_bytes == len(LARGE) + len(SMALL)


def test_surplus_bytes_fail_the_download(tmp_path: Path, store: MemoryStore) -> None:
    """A proxy that answers a range with the whole object must not overwrite the next part."""
    small = {"config.pbtxt": StoredObject("m/config.pbtxt", 3, "1")}
    store.read = lambda wanted, start, stop: iter([SMALL])  # type: ignore[method-assign]
    with pytest.raises(RepositoryUnavailable, match="the storage sent more bytes than requested"):
        downloader(tmp_path).fetch(store, "m", 1, small)


def test_concurrent_downloads_fetch_shared_objects_once(tmp_path: Path, store: MemoryStore) -> None:
    """Several models and versions share objects. Each object is downloaded once, and no download waits for ever."""
    over = [downloader(tmp_path), downloader(tmp_path)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda index: contents(fetch(over[index % 2], store)), range(8)))
    assert found == [WHOLE] * 8
    assert store.read_bytes == len(LARGE) + len(SMALL)
    assert leftovers(tmp_path) == []


def test_stop_ends_running_downloads(tmp_path: Path, store: MemoryStore) -> None:
    reached, release = threading.Event(), threading.Event()

    def block() -> None:
        reached.set()
        release.wait(30)

    store.before_piece = block
    over = downloader(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(fetch, over, store)
        assert reached.wait(30)
        over.stop()
        release.set()
        with pytest.raises(RepositoryUnavailable, match="was stopped"):
            running.result(30)
    with pytest.raises(RepositoryUnavailable, match="was stopped"):
        fetch(over, store)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> DownloadProgress:
    return DownloadProgress(clock)


def test_download_is_counted_and_logged(
    progress: DownloadProgress, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trident.repository")
    with progress.download("m", "model 'm' version 1", 5, 3, 3_000_000) as download:
        download.received(1_000_000)
        download.discarded(1_000_000)
        download.received(1_000_000)
        clock.now += 2
        download.received(500_000)
        download.finished()
        download.retried()
        assert progress.snapshot() == DownloadSnapshot(
            True, ("m",), 1_500_000, 3_000_000, 1, 3, 2.0, 2_500_000, 1, 5, 1, 2.0
        )
        assert caplog.messages == []
        clock.now += 3
        download.received(500_000)
        assert caplog.messages == ["downloading model 'm': 2.0 MB of 3.0 MB, 1 of 3 objects, 5 s"]
        download.received(1_000_000)
        download.finished()
        download.finished()
    assert caplog.messages[1:] == [
        "downloaded model 'm' version 1: 3 objects, 3.0 MB in 5.0 s (800 kB/s), 5 from the cache"
    ]
    clock.now += 10
    after = progress.snapshot()
    assert after == DownloadSnapshot(
        bytes_downloaded_total=4_000_000,
        objects_downloaded_total=3,
        cache_hits_total=5,
        retries_total=1,
        seconds_total=5.0,
    )
