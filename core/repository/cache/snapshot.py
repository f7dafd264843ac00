"""The files of one model version as listed: a tree of hard links to blobs, in a folder of the model cache.

It may be published when all bytes are on the disk and large files are still being verified: these are links to their
partial files, and not read-only yet. Whoever looks for the snapshot then does not find it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from core.repository.cache.cache_contents import LOCK_SUFFIX
from core.repository.cache.disk_space import disk_failure
from core.repository.cache.file_lock import lock_shared
from core.repository.stores.object_store import StoredObject


def snapshot_id(location: str, model: str, contents: Mapping[str, StoredObject]) -> str:
    """The identity of these objects under these paths of this repository.

    It includes the location, although locations share blobs: one storage's tags say nothing about another storage's
    objects. The additional tree of links takes no space.
    """
    listed = sorted((path, stored.size, stored.tag) for path, stored in contents.items())
    return hashlib.sha256(json.dumps([location, model, listed]).encode()).hexdigest()


class Snapshot:
    """A folder in `models/` that eviction spares until `release`; `holds` says whether its files exist."""

    def __init__(self, models: Path, identity: str, model: str) -> None:
        """Wait until no process is removing the folder. Raises OSError."""
        self._folder = models / identity
        self._model = model
        self.path = self._folder / model
        self._lock = lock_shared(models / f"{identity}{LOCK_SUFFIX}")
        try:
            os.utime(self._lock.fd)  # eviction removes the least recently used first
        except OSError:
            self._lock.release()
            raise

    def holds(self, contents: Mapping[str, StoredObject]) -> bool:
        """Whether all files exist with their listed sizes, and are verified; a path that ends with `/` is a folder."""
        try:
            return self.path.is_dir() and all(
                (self.path / path).is_dir() if path.endswith("/") else _is_verified(self.path / path, stored.size)
                for path, stored in contents.items()
            )
        except OSError:  # missing or unreadable; staging it again reports the error
            return False

    @contextmanager
    def staged(self, contents: Mapping[str, StoredObject]) -> Iterator[Staging]:
        """A folder for `contents`, which becomes the snapshot when the block ends, or before if the block says so.

        It is removed if the block fails. Raises RepositoryUnavailable for a disk failure.
        """
        aside = self._aside()
        staging = Staging(aside / self._model, self.path, lambda: self._publish(aside, contents))
        complete = False
        try:
            staging.make()
            yield staging
            staging.publish()
            complete = True
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            if staging.is_published and not complete and not self.holds(contents):
                shutil.rmtree(self._folder, ignore_errors=True)

    def release(self) -> None:
        """End this use of the snapshot; a second call does nothing."""
        self._lock.release()

    def _publish(self, aside: Path, contents: Mapping[str, StoredObject]) -> None:
        # Another thread or process may have published first and may be using its folder, so that folder stays.
        if _rename(aside, self._folder) or self.holds(contents):
            return
        old = self._aside()
        with suppress(FileNotFoundError):
            self._folder.rename(old)
        _rename(aside, self._folder)
        shutil.rmtree(old, ignore_errors=True)

    def _aside(self) -> Path:
        return self._folder.with_name(f"{self._folder.name}.{secrets.token_hex(8)}")


class Staging:
    """A folder that is being filled. Methods, called by one thread at a time, raise RepositoryUnavailable."""

    def __init__(self, folder: Path, published: Path, publish: Callable[[], None]) -> None:
        self.folder = folder
        self.is_published = False
        self._published = published
        self._publish = publish
        self._cache = published.parent.parent.parent

    def make(self) -> None:
        with self._disk_failures():
            self.folder.mkdir(parents=True, mode=0o700)

    def publish(self) -> None:
        """Make the folder the snapshot, once: `folder` is that from now on, and what changes in it changes there."""
        if not self.is_published:
            with self._disk_failures():
                self._publish()
            self.folder, self.is_published = self._published, True

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with self._disk_failures():
            (self.folder / path).unlink(missing_ok=True)

    @contextmanager
    def _disk_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_failure(error, self._cache, 0) from error


def _is_verified(path: Path, size: int) -> bool:
    """Whether a file has its size and is read-only, which it becomes when its content was verified."""
    status = path.stat()
    return status.st_size == size and not status.st_mode & 0o222


def _rename(source: Path, target: Path) -> bool:
    """Rename a folder; False if `target` already exists."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True
