"""The folder with models from object stores, shared by processes and reused at the next start.

    blobs/<id>                 the content of an object, read-only; complete or absent
    parts/<id>.part            a download in progress, under an exclusive lock, as `<id>.lock` for a model
    models/<id>/<model>/…      hard links to blobs; `<id>.lock` has a shared lock while in use

Symbolic links would not work: ONNX Runtime refuses external data behind a link that leaves the model's folder. A blob
is named by its digest if its content was verified against that digest, otherwise by object and tag.

A model may write to its files, as root in spite of their mode, and other models may link the same ones. So each has a
seal, the time of its last change as its content decides it, which a write breaks. A file without its seal is read, and
if its content is not that of the store, it is downloaded again before the next load. To read 10 GB each time would take
10 to 50 s, and to copy them as long, and twice the disk.

At the end is what the cache asks of its disk: a private folder, free space, and locks on files. A lock is an flock,
between threads and processes; the kernel frees it when the process ends. It works only on a local disk: over NFS the
kernel turns it into a lock of the whole process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.stores.object_store import StoredObject, digest_checksum


class Snapshot:
    """A folder in `models/` that eviction spares until `release`."""

    def __init__(self, models: Path, location: str, model: str, contents: Mapping[str, StoredObject]) -> None:
        """Wait until no process is removing the folder. Raises OSError."""
        # The location too, although locations share blobs: one storage's tags say nothing about another's objects.
        # The additional tree of links takes no space.
        listed = sorted((path, stored.size, stored.tag) for path, stored in contents.items())
        identity = hashlib.sha256(json.dumps([location, model, listed]).encode()).hexdigest()
        self._folder = models / identity
        self._location = location
        self._model = model
        self.path = self._folder / model
        self._lock = lock_shared(models / f"{identity}{LOCK_SUFFIX}")
        try:
            os.utime(self._lock.fd)  # eviction removes the least recently used first
        except OSError:
            self._lock.release()
            raise

    def holds(self, contents: Mapping[str, StoredObject]) -> bool:
        """Return whether all files exist with the content of the store, read-only, as they become when verified.

        A path that ends with `/` is a folder.
        """
        try:
            for path, stored in contents.items():
                file = self.path / path
                if path.endswith("/"):
                    if not stat.S_ISDIR(file.stat().st_mode):
                        return False
                elif file.stat().st_mode & 0o222 or not _is_intact(file, self._location, stored):
                    return False
        except OSError:  # missing or unreadable; staging it again reports the error
            return False
        return self.path.is_dir()

    @contextmanager
    def staged(self, contents: Mapping[str, StoredObject]) -> Iterator[Path]:
        """Yield a folder for `contents`, which becomes the snapshot when the block ends, and is removed if it fails.

        Raises RepositoryUnavailable for a disk failure.
        """
        aside, cache = self._aside(), self._folder.parent.parent
        folder = aside / self._model
        try:
            with disk_failures(cache):
                folder.mkdir(parents=True, mode=0o700)
            yield folder
            with disk_failures(cache):
                self._publish(aside, contents)
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


def _seal_ns(location: str, stored: StoredObject) -> int:
    """The time of the last change of a file with the content of `stored`, a whole second in the past."""
    return (1_000_000_000 + int(_names(location, stored)[0][:7], 16)) * 1_000_000_000


def _is_intact(file: Path, location: str, stored: StoredObject) -> bool:
    """Return whether the file has the content of `stored`. Reads it only if its seal is broken. Raises OSError."""
    status, seal = file.stat(), _seal_ns(location, stored)
    if status.st_size != stored.size or status.st_mtime_ns == seal:
        return status.st_size == stored.size
    checksum = digest_checksum(stored.digest)
    if checksum is None:
        return False
    content = checksum.make()
    with open(file, "rb", buffering=0) as opened:
        while piece := opened.read(1 << 20):
            content.update(piece)
    if content.hexdigest() != checksum.value:
        return False
    os.utime(file, ns=(seal, seal))
    return True


def _rename(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True


# Other processes may use the cache at the same time. A snapshot in use has a shared lock, and a part file being
# written has an exclusive one. A blob that is evicted while another process links it is only downloaded again.


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
        if self.used <= limit:
            return
        for _, remove in sorted(self._candidates(), key=lambda candidate: candidate[0]):
            remove()
            if self.used <= limit:
                return

    def removable(self) -> int:
        held: set[int] = set()
        for path, _ in _entries(self._models):
            if path.suffix == LOCK_SUFFIX:
                continue
            lock = try_lock_exclusive(self._models / f"{path.name.partition('.')[0]}{LOCK_SUFFIX}")
            if lock is not None:
                lock.release()
                continue
            for top, _, names in os.walk(path):
                held.update(os.lstat(os.path.join(top, name)).st_ino for name in names)
        found = sum(status.st_size for inode, (_, status) in self._blobs.items() if inode not in held)
        for path, status in self._parts:
            lock = try_lock_exclusive(path)
            if lock is not None:
                lock.release()
                found += _allocated(status)
        return found

    def _candidates(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield the entries that may be removed: the time of the last use (ns), and a function that removes it."""
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
                    aside = path.with_name(f"{identity}.{secrets.token_hex(8)}")
                    path.rename(aside)  # so that no process sees half of it
                    for top, _, names in os.walk(aside):
                        inodes.update(os.lstat(os.path.join(top, name)).st_ino for name in names)
                    shutil.rmtree(aside)
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
            path.unlink()
        finally:
            lock.release()
        self.used -= _allocated(status)


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def _allocated(status: os.stat_result) -> int:
    return status.st_blocks * 512


_log = logging.getLogger("trident.repository")
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS})
# Seconds after which the cache's size is measured again, because other processes add to the cache as well.
_LOOK_AGAIN = 30.0


def free_bytes(directory: Path) -> int:
    """Return the bytes that this user can still write to the disk of `directory`. Raises OSError."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


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
        self._make_folders()

    def _make_folders(self) -> None:
        for folder in (self.directory, self._blobs, self._parts, self._models):
            make_private(folder)

    def snapshot(self, location: str, model: str, contents: Mapping[str, StoredObject]) -> Snapshot:
        """Return the snapshot for a model's files, by path. If it does not hold them, the caller stages them.

        Folders that were removed are made again. Raises RepositoryUnavailable.
        """
        self._make_folders()
        with disk_failures(self.directory):
            return Snapshot(self._models, location, model, contents)

    def take(self, location: str, stored: StoredObject, target: Path) -> bool:
        """Put the content of `stored` at `target`; False if the cache does not have it."""
        with disk_failures(self.directory, stored.size):
            return any(self._take(blob, location, stored, target) for blob in _names(location, stored))

    def make_folder(self, path: Path) -> None:
        with disk_failures(self.directory):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def try_lock(self, location: str, model: str) -> FileLock | None:
        """Lock the downloads of a model; None while another thread or process downloads it."""
        name = hashlib.sha256(json.dumps([location, model]).encode()).hexdigest()
        with disk_failures(self.directory):
            return try_lock_exclusive(self._parts / f"{name}{LOCK_SUFFIX}")

    def part(self, location: str, stored: StoredObject) -> FileLock:
        """Return an empty file for the content of `stored`, locked against eviction. The caller locks its model."""
        with disk_failures(self.directory, stored.size):
            path = self._parts / (_names(location, stored)[-1] + PART_SUFFIX)
            path.unlink(missing_ok=True)  # of a process that has ended
            return lock_exclusive(path)

    def admit(self, part: FileLock, location: str, stored: StoredObject, target: Path, *, named: bool) -> None:
        """Turn a complete `part` into a blob and put it at `target`; `named` if it matches the digest of `stored`."""
        names = _names(location, stored)
        with disk_failures(self.directory, stored.size):
            seal = _seal_ns(location, stored)
            os.utime(part.fd, ns=(seal, seal))
            self._place(part.path, target)  # before it becomes a blob, because one with a single link may be evicted
            os.fchmod(part.fd, 0o400)
            part.path.rename(self._blobs / (names[0] if named else names[-1]))
        with self._evicting:
            self._used += stored.size

    def make_room(self, needed: int) -> None:
        """Evict entries to make room for `needed` bytes. Raises RepositoryUnavailable, before it evicts anything, if
        the disk is too small."""
        with disk_failures(self.directory), self._evicting:
            free = self._free(self.directory)
            if needed > free:
                contents = CacheContents(self.directory)
                if needed - free > contents.removable():
                    raise no_space(self.directory, needed, free)
                contents.shrink(contents.used - (needed - free))
                free = self._free(self.directory)
                if free < needed:
                    raise no_space(self.directory, needed, free)
            self._shrink(self.max_bytes - needed)

    def trim(self) -> None:
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
                "the model cache in %s exceeds its limit: %d bytes are in use, %d are allowed",
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

    def _take(self, blob: str, location: str, stored: StoredObject, target: Path) -> bool:
        path = self._blobs / blob
        try:
            if not _is_intact(path, location, stored):  # the disk has lost some of it, or somebody has changed it
                path.unlink()
                return False
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
            sealed_ns = source.stat().st_mtime_ns
            os.utime(target, ns=(sealed_ns, sealed_ns))


def _names(location: str, stored: StoredObject) -> list[str]:
    """Return the possible names of the blob of `stored`: by its digest, if it has one, and by its location."""
    names = [["object", location, stored.key, stored.tag, stored.size]]
    if digest_checksum(stored.digest):
        names.insert(0, ["digest", stored.digest.lower(), stored.size])
    return [hashlib.sha256(json.dumps(name).encode()).hexdigest() for name in names]


def make_private(directory: Path) -> None:
    """Make a folder that no other user can write to, or check that an existing one is such a folder.

    Raises RepositoryUnavailable.
    """
    cure = "name a folder that only the server's user owns and can write to; it is made if missing"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = directory.stat()
    except FileExistsError as error:
        raise RepositoryUnavailable(f"the model cache {directory} is not a directory", hint=cure) from error
    except OSError as error:
        raise disk_failure(error, directory.parent, 0) from error
    if status.st_uid != os.geteuid():
        raise RepositoryUnavailable(
            f"the model cache {directory} belongs to user {status.st_uid}, the server runs as {os.geteuid()}", hint=cure
        )
    if status.st_mode & 0o022:
        raise RepositoryUnavailable(
            f"others can write to the model cache {directory} (mode {status.st_mode & 0o7777:o})", hint=cure
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RepositoryUnavailable(f"the model cache {directory} cannot be written to", hint=cure)


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: OSError) -> bool:
    """Return whether a write failed for lack of space: a full disk, a quota, or a limit on the size of a file."""
    return error.errno in _FULL


def no_space(directory: Path, needed: int, free: int, why: str = "no space left on the disk") -> RepositoryUnavailable:
    return RepositoryUnavailable(
        f"the model cache in {directory} is full: {why}; {needed} bytes are needed, {free} bytes are free",
        hint="free space there, or name a folder on a larger disk as the model cache",
    )


def disk_failure(error: OSError, directory: Path, needed: int) -> RepositoryUnavailable:
    if is_full(error):
        return no_space(directory, needed, free_bytes(directory), error.strerror or str(error))
    return RepositoryUnavailable(f"failed to use the model cache in {directory}: {error.strerror or error}")


@contextmanager
def disk_failures(directory: Path, needed: int = 0) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_failure(error, directory, needed) from error


class FileLock:
    """A lock until `release`. `fd` is its own descriptor, open for reading and writing."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._held = threading.Lock()
        self._held.acquire()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        try:
            self._held.release()
        except RuntimeError:
            return
        # Unlock explicitly: a child forked in the meantime shares the descriptor, so closing ours would not unlock.
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)


def lock_shared(path: Path) -> FileLock:
    """Wait for a shared lock on the file at `path`, which is made if missing. Raises OSError."""
    lock = _lock(path, fcntl.LOCK_SH)
    assert lock is not None
    return lock


def lock_exclusive(path: Path) -> FileLock:
    """Wait for an exclusive lock on the file at `path`, which is made if missing. Raises OSError."""
    lock = _lock(path, fcntl.LOCK_EX)
    assert lock is not None
    return lock


def try_lock_exclusive(path: Path) -> FileLock | None:
    """Lock the file at `path`, made if missing, exclusively; None if it has another lock. Raises OSError."""
    return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock(path: Path, operation: int) -> FileLock | None:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, operation)
            # The previous owner may have renamed or removed the file; then this lock protects nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
                    return FileLock(path, fd)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
