"""A cache of several processes: they share downloads, and take over from a killed process."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.repository.download_child import PART_BYTES
from tests.project import ROOT
from tests.unit.core.repository.memory_store import MemoryStore, downloader
from tests.waiting import until
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cache import ModelCache
from trident.core.repository.stores.object_store import StoredObject

SIZE = 10 * PART_BYTES

pytestmark = pytest.mark.slow


class Storage:
    """A file as the storage, and the processes that fetch it."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.log = folder / "log"
        self.gate = folder / "gate"
        self.content = folder / "content"
        content = random.Random(3).randbytes(SIZE)
        self.content.write_bytes(content)
        self.log.touch()
        self.digest = hashlib.sha256(content).hexdigest()

    def fetched(self) -> int:
        """The bytes that all processes have read."""
        return sum(int(line) for line in self.log.read_text().split("\n")[:-1])

    @contextmanager
    def child(self, hold_at: int = SIZE) -> Iterator[subprocess.Popen[str]]:
        """A process that has begun to fetch."""
        arguments = [self.cache, self.content, self.log, self.gate, hold_at]
        command = [sys.executable, "-m", "tests.contract.repository.download_child", *map(str, arguments)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert line(process) == "fetching"
                yield process
            finally:
                process.kill()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_processes_download_it_once(storage: Storage) -> None:
    with storage.child(hold_at=SIZE // 2) as first:
        until(lambda: storage.fetched() >= SIZE // 4)  # it has locked the part file
        with storage.child(hold_at=0) as second:
            storage.gate.touch()
            assert line(first) == line(second) == storage.digest
    assert storage.fetched() == SIZE
    (blob,) = (storage.cache / "blobs").iterdir()
    assert blob.stat().st_nlink == 2


def test_waiting_process_takes_over_from_a_killed_one(storage: Storage) -> None:
    with storage.child(hold_at=SIZE // 2) as killed:
        until(lambda: storage.fetched() >= SIZE // 4)
        with storage.child() as second:
            killed.kill()
            killed.wait()
            assert line(second) == storage.digest
    (blob,) = (storage.cache / "blobs").iterdir()
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == storage.digest


def test_object_in_use_is_not_evicted(storage: Storage) -> None:
    with storage.child() as user:
        assert line(user) == storage.digest
        cache = ModelCache(storage.cache, 1000)
        cache.trim()
        assert list((storage.cache / "models").glob("*/m/1/model.onnx"))
        user.kill()
        user.wait()
        cache.trim()
    assert list((storage.cache / "models").iterdir()) == list((storage.cache / "blobs").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB, which only root can mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_disk_that_is_too_small_fails_the_download(small_disk: Path) -> None:
    store = MemoryStore({"m/1/model.onnx": b"x" * (5 << 20)})
    with pytest.raises(RepositoryUnavailable, match=r"has no room: .*5242880 bytes are needed, \d+ bytes are free"):
        downloader(small_disk).fetch(store, "m", 1, {"1/model.onnx": store.object("m/1/model.onnx")})
    assert store.reads == []


def test_disk_that_fills_up_fails_the_download(small_disk: Path) -> None:
    store = MemoryStore({"m/1/model.onnx": b"x" * (3 << 20), "n/x": b"small"})
    over = downloader(small_disk / "cache", part_bytes=1 << 20)
    others = iter([b"x" * (3 << 20)])
    store.before_piece = lambda: [(small_disk / "other").write_bytes(content) for content in others]
    with pytest.raises(
        RepositoryUnavailable, match=r"No space left on device; \d+ bytes are needed, \d+ bytes are free"
    ):
        over.fetch(store, "m", 1, {"1/model.onnx": store.object("m/1/model.onnx")})
    assert (
        list((small_disk / "cache" / "parts").glob("*.part")) == list((small_disk / "cache" / "blobs").iterdir()) == []
    )
    store.before_piece = lambda: None
    small = {"x": StoredObject("n/x", 5, "1")}
    snapshot = over.fetch(store, "n", 1, small)
    assert (snapshot.path / "x").read_bytes() == b"small"
    snapshot.release()  # its lock would keep the disk from being unmounted
