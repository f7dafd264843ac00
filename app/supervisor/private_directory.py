"""The directory that the processes of one server share and nobody else sees.

engine.sock   where the engine listens
loads/        what was loaded by request, for an engine that is started again
files/        what the engine unpacks, for as long as it lives
metrics/      the front ends' counts of requests

All processes of the server hold a lock on it, which the kernel takes back when the last of them has ended, however that
was: so it can be told from one that nobody is left to remove. A process number could not tell, as it is soon another
process's, and every container has its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from core.errors import ErrorCode, ServerError

_PREFIX = "trident-"
# What the kernel takes for the address of a Unix socket, its final zero among it.
_LONGEST_ADDRESS = 107


class NoPrivateDirectory(ServerError):
    code = ErrorCode.UNAVAILABLE


class PrivateDirectory:
    """`path` is this user's alone (mode 0700); two servers never have the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "engine.sock"
        self.loads = path / "loads"
        self.metrics = path / "metrics"
        self._owner = os.getpid()

    @classmethod
    def make(cls, parent: Path | None = None) -> PrivateDirectory:
        """A new one, named after this process. Removes those of servers that were killed before they could.

        It is locked as long as this process, or one that is forked from it, lives. Raises NoPrivateDirectory.
        """
        try:
            folder = parent or Path(tempfile.gettempdir())
            remove_abandoned(folder)
            made = cls(_locked(folder))
            made.metrics.mkdir()
        except OSError as error:
            raise _not_made(f"cannot be made: {error}") from error
        if len(os.fsencode(made.socket)) > _LONGEST_ADDRESS:
            made.remove()
            raise _not_made(f"has a path that is too long for a socket: {made.path}")
        return made

    def new_files(self) -> Path:
        """The directory for files of an engine that starts: what the last one left behind goes. Raises OSError."""
        files = self.path / "files"
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(exist_ok=True)
        return files

    def remove(self) -> None:
        """May be called again, and by more than one process."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_if_orphaned(self) -> None:
        """Remove it in a child of the process that made it, if that one has ended without doing so."""
        if os.getppid() != self._owner:
            self.remove()


def remove_abandoned(folder: Path) -> None:
    """Remove the directories of this user's servers of which no process is left."""
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
        except BlockingIOError:  # another server starts, and takes it for abandoned
            os.close(descriptor)
            continue
        except OSError:  # a file system without locks: nobody will ever take it for abandoned
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
        hint="set TMPDIR to a short path that can be written, or --http-workers=0",
    )
