"""The model cache: lookups, snapshots, eviction, locks, disk space and refused folders."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import MemoryStore
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cache import ModelCache, Snapshot, disk_failure, lock_shared, try_lock_exclusive
from trident.core.repository.stores.object_store import StoredObject

HERE = "memory://bucket"


def fill(
    cache: ModelCache,
    model: str,
    content: bytes,
    *,
    location: str = HERE,
    hold: bool = False,
    stored: StoredObject | None = None,
) -> Snapshot:
    """Make a snapshot of `model` with one file of `content`, as a download does, unless there is one."""
    stored = stored or MemoryStore({f"{model}/1/model.onnx": content}).object(f"{model}/1/model.onnx")
    contents = {"1/model.onnx": stored}
    snapshot = cache.snapshot(location, model, contents)
    with snapshot.staged(contents) as folder:
        target = folder / "1" / "model.onnx"
        if not cache.take(location, stored, target):
            cache.make_room(len(content))
            part = cache.part(location, stored)
            os.write(part.fd, content)
            cache.admit(part, location, stored, target, named=True)
            part.release()
    if not hold:
        snapshot.release()
    return snapshot


def age(cache: ModelCache, snapshot: Snapshot, seconds: int) -> None:
    lock = cache.directory / "models" / f"{snapshot.path.parent.name}.lock"
    status = lock.stat()
    os.utime(lock, ns=(status.st_atime_ns, status.st_mtime_ns - seconds * 10**9))


def sizes(cache: ModelCache) -> list[int]:
    return sorted(path.stat().st_size for path in (cache.directory / "blobs").iterdir())


def test_blob_of_the_wrong_size_is_removed(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    fill(cache, "m", b"graph")
    (blob,) = (tmp_path / "blobs").iterdir()
    os.truncate(blob, 3)
    stored = MemoryStore({"m/1/model.onnx": b"graph"}).object("m/1/model.onnx")
    assert not cache.take(HERE, stored, tmp_path / "taken")
    assert not blob.exists()


def test_only_damaged_snapshots_are_replaced(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    file = fill(cache, "m", b"graph", hold=True).path / "1" / "model.onnx"
    inode = file.parent.stat().st_ino
    fill(cache, "m", b"graph")
    assert file.parent.stat().st_ino == inode
    file.chmod(0o600)  # its content may have changed
    fill(cache, "m", b"graph")
    assert file.parent.stat().st_ino != inode
    file.unlink()
    fill(cache, "m", b"graph")
    assert file.read_bytes() == b"graph"
    assert sorted(path.suffix for path in (tmp_path / "models").iterdir()) == ["", ".lock"]


def test_modified_model_files_do_not_affect_other_loads(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    files = [fill(cache, model, b"graph", hold=True).path / "1" / "model.onnx" for model in "ab"]
    assert files[0].samefile(files[1])
    mode = files[0].stat().st_mode
    files[0].chmod(0o600)
    with files[0].open("r+b") as opened:
        opened.write(b"other")
    files[0].chmod(mode)
    for model, file in zip("ba", reversed(files), strict=True):
        fill(cache, model, b"graph")
        assert file.read_bytes() == b"graph"
    assert [path.read_bytes() for path in (tmp_path / "blobs").iterdir()] == [b"graph"]


@pytest.mark.parametrize("has_digest", [True, False])
def test_touched_file_is_verified_once(tmp_path: Path, has_digest: bool) -> None:
    cache = ModelCache(tmp_path)
    stored = MemoryStore({"m/1/model.onnx": b"graph"}).object("m/1/model.onnx")
    stored = stored if has_digest else replace(stored, digest="")
    snapshot = fill(cache, "m", b"graph", stored=stored)
    file = snapshot.path / "1" / "model.onnx"
    sealed_ns = file.stat().st_mtime_ns
    assert snapshot.holds({"1/model.onnx": stored})
    os.utime(file)
    assert snapshot.holds({"1/model.onnx": stored}) is has_digest
    assert (file.stat().st_mtime_ns == sealed_ns) is has_digest


def test_disk_without_links_gets_copies(tmp_path: Path) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    cache = ModelCache(tmp_path, link=refuse)
    file = fill(cache, "m", b"graph").path / "1" / "model.onnx"
    assert file.read_bytes() == b"graph"
    (blob,) = (tmp_path / "blobs").iterdir()
    assert not blob.samefile(file)
    assert blob.stat().st_mtime_ns == file.stat().st_mtime_ns


def test_names_that_collide_on_the_disk_are_an_error(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    fill(cache, "m", b"graph")
    stored = MemoryStore({"m/1/model.onnx": b"graph"}).object("m/1/model.onnx")
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(RepositoryUnavailable, match="does not tell apart, 'taken'"):
        cache.take(HERE, stored, tmp_path / "taken")


def test_eviction_removes_the_least_recently_used_first(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 100)
    old, older = fill(cache, "old", b"o" * 30), fill(cache, "older", b"p" * 31)
    recent = fill(cache, "recent", b"r" * 32)
    age(cache, old, 100)
    age(cache, older, 200)
    fill(cache, "new", b"n" * 33)
    assert sizes(cache) == [30, 32, 33]
    assert (old.path.exists(), older.path.exists(), recent.path.exists()) == (True, False, True)
    assert not list((tmp_path / "models").glob(f"{older.path.parent.name}*"))


def test_held_snapshot_is_not_evicted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trident.repository")
    cache = ModelCache(tmp_path, 100)
    held = fill(cache, "held", b"h" * 60, hold=True)
    age(cache, held, 1000)
    idle = fill(cache, "idle", b"i" * 40)
    new = fill(cache, "new", b"n" * 61, hold=True)
    assert sizes(cache) == [60, 61]
    assert (held.path / "1" / "model.onnx").exists()
    assert not idle.path.exists()
    cache.trim()
    cache.trim()
    assert len(caplog.messages) == 1
    assert "121 bytes are in use, 100 are allowed" in caplog.messages[0]
    held.release()
    cache.trim()
    assert sizes(cache) == [61]
    assert new.path.exists()


def test_shared_blob_stays_while_one_snapshot_is_held(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 50)
    first = fill(cache, "first", b"s" * 40)
    second = fill(cache, "second", b"s" * 40, hold=True)
    age(cache, first, 100)
    fill(cache, "new", b"n" * 30, hold=True)
    assert not first.path.exists()
    assert (second.path / "1" / "model.onnx").read_bytes() == b"s" * 40
    assert sizes(cache) == [30, 40]


def test_unlocked_part_files_are_evicted(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 10_000)
    idle, held = (cache.part(HERE, StoredObject(key, 4096, "1")) for key in ("a", "b"))
    for part in (idle, held):
        os.write(part.fd, b"x" * 4096)
    idle.release()
    fill(cache, "m", b"n" * 9000)
    assert list((tmp_path / "parts").iterdir()) == [held.path]
    held.release()


def test_full_disk_evicts_unused_entries_before_it_fails(tmp_path: Path) -> None:
    """Unused entries make room even below the limit; if that is not enough, the error names the bytes needed."""
    taken = [0]
    cache = ModelCache(tmp_path, free=lambda _: 100 - sum(sizes(cache)) - taken[0])
    fill(cache, "idle", b"i" * 60)
    fill(cache, "new", b"n" * 70, hold=True)
    assert sizes(cache) == [70]
    with pytest.raises(RepositoryUnavailable, match=r"is full.*; 31 bytes are needed, 30 bytes are free") as refused:
        fill(cache, "more", b"m" * 31)
    assert str(tmp_path) in refused.value.message


def test_oversized_download_is_refused_before_evictions(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 1000, free=lambda _: 100 - sum(sizes(cache)))
    fill(cache, "idle", b"i" * 20)
    fill(cache, "held", b"h" * 30, hold=True)
    part = cache.part(HERE, StoredObject("unfinished", 10, "1"))
    with pytest.raises(RepositoryUnavailable, match="71 bytes are needed, 50 bytes are free"):
        fill(cache, "new", b"n" * 71)
    part.release()
    assert sizes(cache) == [20, 30]
    fill(cache, "new", b"n" * 70)
    assert sizes(cache) == [30, 70]


def test_removed_cache_folder_is_recreated(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    fill(cache, "m", b"graph")
    shutil.rmtree(tmp_path / "cache")
    snapshot = fill(cache, "m", b"graph")
    assert (snapshot.path / "1" / "model.onnx").read_bytes() == b"graph"
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_world_writable_folder_is_refused(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(RepositoryUnavailable, match=r"others can write to the model cache .*mode 777") as refused:
        ModelCache(open_folder)
    assert refused.value.hint is not None
    ModelCache(open_folder / "inside")


def test_cache_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RepositoryUnavailable, match="is not a directory"):
        ModelCache(tmp_path / "file")
    with pytest.raises(RepositoryUnavailable, match="failed to use the model cache"):
        ModelCache(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(RepositoryUnavailable, match="belongs to user 12345"):
        ModelCache(folder)


def test_eviction_skips_a_locked_snapshot(tmp_path: Path) -> None:
    """Another process may be removing the snapshot at this moment."""
    cache = ModelCache(tmp_path, 10)
    snapshot = fill(cache, "m", b"x" * 20)
    lock = try_lock_exclusive(tmp_path / "models" / f"{snapshot.path.parent.name}.lock")
    assert lock is not None
    cache.trim()
    assert sizes(cache) == [20]
    lock.release()
    cache.trim()
    assert sizes(cache) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_failure_names_needed_and_free_bytes(tmp_path: Path, number: int) -> None:
    failure = disk_failure(OSError(number, "the reason"), tmp_path, 17)
    assert failure.message.startswith(f"the model cache in {tmp_path} is full: the reason; 17 bytes are needed, ")


def test_lock_is_taken_on_the_new_file_after_a_removal(tmp_path: Path) -> None:
    """A waiter must not end up with a lock on the removed file."""
    path = tmp_path / "a.lock"
    old = try_lock_exclusive(path)
    assert old is not None
    got = []
    waiting = threading.Thread(target=lambda: got.append(lock_shared(path)))
    waiting.start()
    path.unlink()
    old.release()
    waiting.join(10)
    assert try_lock_exclusive(path) is None
    got[0].release()
    assert path.exists()
