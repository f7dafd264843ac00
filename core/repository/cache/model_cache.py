"""The folder that keeps models from object stores, shared by processes and kept for the next start.

    blobs/<id>                 the content of an object, read-only; complete or absent
    parts/<id>.part, .ranges   a download in progress, under an exclusive lock (../download/partial_file.py)
    models/<id>/<model>/…      hard links to blobs (snapshot.py); `<id>.lock` has a shared lock while in use

Symbolic links would not work: ONNX Runtime refuses external data behind a link that leaves the model's folder. A blob
is named by its digest if its content was verified against that digest, otherwise by object and tag.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from core.errors import RepositoryUnavailable
from core.repository.cache.cache_contents import PART_SUFFIX, CacheContents
from core.repository.cache.disk_space import disk_failure, free_bytes, no_space
from core.repository.cache.file_lock import try_lock_exclusive
from core.repository.cache.private_folder import make_private
from core.repository.cache.snapshot import Snapshot, snapshot_id
from core.repository.download.content_hash import digest_checksum
from core.repository.download.partial_file import PartialFile
from core.repository.stores.object_store import StoredObject

_log = logging.getLogger("trident.repository")
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS})
# Seconds after which the cache's size is measured again, because other processes add to the cache as well.
_LOOK_AGAIN = 30.0


class ModelCache:
    """A cache directory; any thread, several processes at once. Methods raise RepositoryUnavailable for a disk failure.

    `max_bytes` limits the size of the blobs; 0 means no limit. Eviction removes entries that are not in use, least
    recently used first. On a disk without hard links, copies replace the links and are not counted.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int = 0,
        *,
        free: Callable[[Path], int] = free_bytes,
        link: Callable[[Path, Path], object] = os.link,
    ) -> None:
        """Make `directory` for this user alone. Raises RepositoryUnavailable if other users could write to it."""
        self.directory = directory
        self.max_bytes = max_bytes
        self._free = free
        self._link = link
        self._blobs = directory / "blobs"
        self._parts = directory / "parts"
        self._models = directory / "models"
        self._evicting = threading.Lock()
        self._used = 0
        self._looked_at = float("-inf")
        self._warned = False
        make_private(directory)
        for folder in (self._blobs, self._parts, self._models):
            make_private(folder)

    def snapshot(self, location: str, model: str, contents: Mapping[str, StoredObject]) -> Snapshot:
        """The snapshot for a model's files, by path. It may have them already; otherwise the caller stages them."""
        try:
            return Snapshot(self._models, snapshot_id(location, model, contents), model)
        except OSError as error:
            raise disk_failure(error, self.directory, 0) from error

    def take(self, location: str, stored: StoredObject, target: Path) -> bool:
        """Put the content of `stored` at `target`; False if the cache does not have it."""
        try:
            return any(self._take(blob, stored.size, target) for blob in _names(location, stored))
        except OSError as error:
            raise disk_failure(error, self.directory, stored.size) from error

    def make_folder(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise disk_failure(error, self.directory, 0) from error

    def try_part(self, location: str, stored: StoredObject, part_bytes: int) -> PartialFile | None:
        """The partial file of `stored`, for this caller alone; None while another thread or process holds it."""
        try:
            lock = try_lock_exclusive(self._part_path(location, stored))
        except OSError as error:
            raise disk_failure(error, self.directory, stored.size) from error
        return None if lock is None else PartialFile(lock, stored.size, part_bytes)

    def link_part(self, part: PartialFile, target: Path) -> bool:
        """Put `part`, which has all bytes and is not verified yet, at `target`; False on a disk without hard links."""
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._link(part.path, target)
        except OSError:  # `admit` finds the same fault, and says so
            return False
        return True

    def admit(
        self, part: PartialFile, location: str, stored: StoredObject, target: Path, *, named: bool, linked: bool = False
    ) -> None:
        """Turn a complete `part` into a blob and put it at `target`, unless it is `linked` there already.

        `named`: its content was verified against the digest of `stored`.
        """
        names = _names(location, stored)
        try:
            if not linked:  # before it becomes a blob, because one with a single link may be evicted
                self._place(part.path, target)
            part.move_to(self._blobs / (names[0] if named else names[-1]))
        except OSError as error:
            raise disk_failure(error, self.directory, stored.size) from error
        with self._evicting:
            self._used += stored.size

    def make_room(self, location: str, wanted: Mapping[str, StoredObject]) -> None:
        """Evict entries to make room for `wanted`. Raises RepositoryUnavailable if the disk is too small for it."""
        try:
            needed = sum(stored.size - self._has(location, stored) for stored in wanted.values())
            with self._evicting:
                self._shrink(self.max_bytes - needed)
                missing = needed - self._free(self.directory)
                if missing > 0:
                    contents = CacheContents(self.directory)
                    contents.shrink(contents.used - missing)
                    free = self._free(self.directory)
                    if free < needed:
                        raise no_space(self.directory, needed, free)
        except OSError as error:
            raise disk_failure(error, self.directory, 0) from error

    def trim(self) -> None:
        """Evict entries until the cache is within `max_bytes`, except those in use."""
        try:
            with self._evicting:
                self._shrink(self.max_bytes)
                excess = self.max_bytes and self._used > self.max_bytes
                warn = excess and not self._warned
                self._warned = bool(excess)
        except OSError as error:  # the downloaded model is complete and usable
            _log.warning("failed to evict from the model cache in %s: %s", self.directory, error.strerror)
            return
        if warn:
            _log.warning(
                "the model cache in %s holds %d bytes that are in use, more than its bound of %d",
                self.directory,
                self._used,
                self.max_bytes,
            )

    def _shrink(self, limit: int) -> None:
        if not self.max_bytes:
            return
        if self._used > limit or time.monotonic() - self._looked_at > _LOOK_AGAIN:
            contents = CacheContents(self.directory)
            contents.shrink(max(0, limit))
            self._used = contents.used
            self._looked_at = time.monotonic()

    def _take(self, blob: str, size: int, target: Path) -> bool:
        path = self._blobs / blob
        try:
            status = path.stat()
            if status.st_size != size:  # the disk has lost some of it, or somebody has changed it
                path.unlink()
                return False
            if status.st_mode & 0o222:  # the process that made it a blob ended at that moment
                path.chmod(0o400)
            self._place(path, target)
        except FileNotFoundError:
            return False
        return True

    def _place(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._link(source, target)
        except FileExistsError as error:
            raise RepositoryUnavailable(
                f"two objects have names that this disk does not tell apart, '{target.name}' is one of them"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with open(source, "rb") as content, open(target, "xb") as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
            target.chmod(0o400)

    def _part_path(self, location: str, stored: StoredObject) -> Path:
        return self._parts / (_names(location, stored)[-1] + PART_SUFFIX)

    def _has(self, location: str, stored: StoredObject) -> int:
        """The bytes of `stored` that an earlier download has already allocated."""
        try:
            return min(stored.size, self._part_path(location, stored).stat().st_blocks * 512)
        except FileNotFoundError:
            return 0


def _names(location: str, stored: StoredObject) -> list[str]:
    """The possible names of the blob of `stored`: by its digest, if it has one, and by its place in the storage."""
    names = [["object", location, stored.key, stored.tag, stored.size]]
    if digest_checksum(stored.digest):
        names.insert(0, ["digest", stored.digest.lower(), stored.size])
    return [hashlib.sha256(json.dumps(name).encode()).hexdigest() for name in names]
