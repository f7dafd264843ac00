"""An flock on a file, shared or exclusive, between threads and processes; the kernel frees it when the process ends.

It works only on a local disk: over NFS the kernel turns it into a lock of the whole process.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path


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
