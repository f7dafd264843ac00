"""The private directory that the processes of one server share.

engine.sock   the socket on which the engine listens; engine-1.sock and so on for those after the first
changes/      what clients have changed by request, for a restarted engine
files/        the files that the engine unpacks, until it ends; files-1 and so on for those after the first
served-0      an empty file: the first engine has served; served-1 and so on for those after the first
metrics/      the front ends' counters of requests
and folders of the platforms' applications, such as for the models that a platform loads

All processes of the server hold a lock on the directory, which the kernel releases when the last of them has ended. A
directory without a lock is abandoned, and the next server removes it. A pid would not do: pids are reused, and every
container has its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from trident.core.errors import ErrorCode, ServerError

_PREFIX = "trident-"
# The kernel limits the address of a Unix socket to this length.
_MAX_ADDRESS = 107
# No engine has a longer number.
_MAX_ENGINES = 999


class NoPrivateDirectory(ServerError):
    code = ErrorCode.UNAVAILABLE


class PrivateDirectory:
    """A directory that only this user can enter (mode 0700); no two servers have the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = self.socket_of(0)
        self.changes = path / "changes"
        self.metrics = path / "metrics"
        self._owner = os.getpid()

    @classmethod
    def make(cls, parent: Path | None = None) -> PrivateDirectory:
        """Make a directory named after this process, and remove those of servers that were killed.

        It is locked while this process, or a process forked from it, lives. Raises NoPrivateDirectory.
        """
        try:
            folder = parent or Path(tempfile.gettempdir())
            remove_abandoned(folder)
            made = cls(_locked(folder))
            made.metrics.mkdir()
        except OSError as error:
            raise _not_made(f"cannot be made: {error}") from error
        if len(os.fsencode(made.socket_of(_MAX_ENGINES))) > _MAX_ADDRESS:
            made.remove()
            raise _not_made(f"has a path that is too long for a socket: {made.path}")
        return made

    def socket_of(self, engine: int) -> Path:
        """Where the engine of this number listens, counted from 0."""
        return self.path / (f"engine-{engine}.sock" if engine else "engine.sock")

    def new_files(self, engine: int = 0) -> Path:
        """An empty directory for the files of an engine that starts. Raises OSError."""
        files = self.path / (f"files-{engine}" if engine else "files")
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(exist_ok=True)
        return files

    def remove(self) -> None:
        """Remove the directory. May be called again, and by more than one process."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_if_orphaned(self) -> None:
        """Remove the directory if the process that made it has ended. Called in its children."""
        if os.getppid() != self._owner:
            self.remove()


def remove_abandoned(folder: Path) -> None:
    """Remove the directories of this user's servers whose processes have all ended."""
    for path in folder.glob(f"{_PREFIX}*-*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if number.isdigit() and path.lstat().st_uid == os.getuid():
                _remove_unlocked(path)


def _locked(folder: Path) -> Path:
    """A new directory in `folder`, and a lock on it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=folder))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # another server that starts took the directory for abandoned
            os.close(descriptor)
            continue
        except OSError:  # a file system without locks: no server will take it for abandoned
            return path
        if path.exists():
            return path
        os.close(descriptor)


def _remove_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _not_made(what: str) -> NoPrivateDirectory:
    return NoPrivateDirectory(
        f"the directory that HTTP workers and engine share {what}",
        hint="set TMPDIR to a short, writable path, or use --http-workers=0",
    )
