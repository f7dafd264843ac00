"""The files of one model version as listed: a tree of hard links to blobs, in a folder of the model cache."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
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
        """Whether all files exist with their listed sizes; a path that ends with `/` is a folder."""
        try:
            return self.path.is_dir() and all(
                (self.path / path).is_dir() if path.endswith("/") else (self.path / path).stat().st_size == stored.size
                for path, stored in contents.items()
            )
        except OSError:  # missing or unreadable; staging it again reports the error
            return False

    @contextmanager
    def staged(self, contents: Mapping[str, StoredObject]) -> Iterator[Path]:
        """A folder for `contents`, which becomes the snapshot when the block ends and is removed if the block fails.

        Raises RepositoryUnavailable for a disk failure.
        """
        aside = self._aside()
        cache = self._folder.parent.parent
        try:
            try:
                (aside / self._model).mkdir(parents=True, mode=0o700)
            except OSError as error:
                raise disk_failure(error, cache, 0) from error
            yield aside / self._model
            try:
                self._publish(aside, contents)
            except OSError as error:
                raise disk_failure(error, cache, 0) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

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


def _rename(source: Path, target: Path) -> bool:
    """Rename a folder; False if `target` already exists."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True
