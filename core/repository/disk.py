"""The disk of the model cache: a private folder, free space, failures, and locks on files.

A lock is an flock, between threads and processes; the kernel frees it when the process ends. It works only on a local
disk: over NFS the kernel turns it into a lock of the whole process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trident.core.errors import RepositoryUnavailable


def make_private(directory: Path) -> None:
    """Make a folder that no other user can write to, or check that an existing one is such a folder.

    Raises RepositoryUnavailable.
    """
    cure = "name a folder that the server's user owns and nobody else can write to; it is made if missing"
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


def free_bytes(directory: Path) -> int:
    """The bytes that this user can still write to the disk of `directory`. Raises OSError."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def is_full(error: OSError) -> bool:
    """Whether a write failed for lack of space: a full disk, a quota, or a limit on the size of a file."""
    return error.errno in _FULL


def no_space(directory: Path, needed: int, free: int, why: str = "no space left on the disk") -> RepositoryUnavailable:
    return RepositoryUnavailable(
        f"the model cache in {directory} has no room: {why}; {needed} bytes are needed, {free} bytes are free",
        hint="free space there, or name a folder on a larger disk as the model cache",
    )


def disk_failure(error: OSError, directory: Path, needed: int) -> RepositoryUnavailable:
    """The exception for an error of the model cache in `directory`, which still had `needed` bytes to write."""
    if is_full(error):
        return no_space(directory, needed, free_bytes(directory), error.strerror or str(error))
    return RepositoryUnavailable(f"failed to use the model cache in {directory}: {error.strerror or error}")


@contextmanager
def disk_failures(directory: Path, needed: int = 0) -> Iterator[None]:
    """Turn each OSError of the block into `disk_failure`."""
    try:
        yield
    except OSError as error:
        raise disk_failure(error, directory, needed) from error


class FileLock:
    """A lock that is held until `release`. `fd` is its own descriptor, open for reading and writing."""

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
    """Lock the file at `path`, made if missing, exclusively; None if another lock is held on it. Raises OSError."""
    return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lock_shared(path: Path) -> FileLock | None:
    """As `lock_shared`, but None if an exclusive lock is held on the file. Raises OSError."""
    return _lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _lock(path: Path, operation: int) -> FileLock | None:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, operation)
            # The previous holder may have renamed or removed the file; then this lock protects nothing.
            if _is_at(fd, path):
                return FileLock(path, fd)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
