"""The contents of a model cache and their eviction: the least recently used first, never anything in use.

Other processes may use the cache at the same time. A snapshot in use has a shared lock, and a part file being written
has an exclusive one. A blob that is evicted while another process links it is only downloaded again.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from core.repository.cache.file_lock import try_lock_exclusive
from core.repository.download.partial_file import journal_path

LOCK_SUFFIX = ".lock"
PART_SUFFIX = ".part"


class CacheContents:
    """The contents of a cache directory when this was made. `used`: the bytes of its blobs and part files.

    Methods raise OSError. They ignore files that another process has removed in the meantime.
    """

    def __init__(self, directory: Path) -> None:
        self._models = directory / "models"
        self._blobs: dict[int, tuple[Path, os.stat_result]] = {}
        self._parts: list[tuple[Path, os.stat_result]] = []
        for path, status in _entries(directory / "blobs"):
            self._blobs[status.st_ino] = path, status
        for path, status in _entries(directory / "parts"):
            if path.suffix == PART_SUFFIX:
                self._parts.append((path, status))
        self.used = sum(status.st_size for _, status in self._blobs.values())
        self.used += sum(_allocated(status) for _, status in self._parts)

    def shrink(self, limit: int) -> None:
        """Remove the least recently used entries until `used` is at most `limit` or no entry may be removed."""
        if self.used <= limit:
            return
        for _, remove in sorted(self._candidates(), key=lambda candidate: candidate[0]):
            remove()
            if self.used <= limit:
                return

    def _candidates(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """The entries that may be removed: the time of the last use (ns), and a function that removes the entry."""
        snapshots: dict[str, int] = {}
        for path, status in _entries(self._models):
            identity = path.name.partition(".")[0]
            locked = status.st_mtime_ns if path.suffix == LOCK_SUFFIX else 0
            snapshots[identity] = max(locked, snapshots.get(identity, 0))
        for identity, used_at in snapshots.items():
            yield used_at, partial(self._remove_snapshot, identity)
        for inode, (_, status) in self._blobs.items():
            if status.st_nlink == 1:
                # Its change time is when it lost its last other link, or when it was made.
                yield status.st_ctime_ns, partial(self._remove_blob, inode)
        for path, status in self._parts:
            yield status.st_mtime_ns, partial(self._remove_part, path, status)

    def _remove_snapshot(self, identity: str) -> None:
        lock = try_lock_exclusive(self._models / f"{identity}{LOCK_SUFFIX}")
        if lock is None:
            return
        try:
            inodes: set[int] = set()
            for path, _ in _entries(self._models):
                if path.name.partition(".")[0] == identity and path != lock.path:
                    inodes |= _remove_tree(path)
            lock.path.unlink()
        finally:
            lock.release()
        for inode in inodes & self._blobs.keys():
            self._remove_blob(inode)

    def _remove_blob(self, inode: int) -> None:
        path, _ = self._blobs[inode]
        with suppress(FileNotFoundError):
            status = path.stat()
            if status.st_nlink > 1 or status.st_ino != inode:  # another snapshot links it, or it was replaced
                return
            path.unlink()
        self.used -= self._blobs.pop(inode)[1].st_size

    def _remove_part(self, path: Path, status: os.stat_result) -> None:
        lock = try_lock_exclusive(path)
        if lock is None:
            return
        try:
            journal_path(path).unlink(missing_ok=True)
            path.unlink()
        finally:
            lock.release()
        self.used -= _allocated(status)


def _remove_tree(path: Path) -> set[int]:
    """Remove a folder and return the inodes that were in it. It is renamed first, so that nobody sees half of it."""
    aside = path.with_name(f"{path.name.partition('.')[0]}.{secrets.token_hex(8)}")
    path.rename(aside)
    inodes = {os.lstat(os.path.join(folder, name)).st_ino for folder, _, names in os.walk(aside) for name in names}
    shutil.rmtree(aside)
    return inodes


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def _allocated(status: os.stat_result) -> int:
    return status.st_blocks * 512
