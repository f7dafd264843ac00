"""Files of the server's processes: how many may be open, where temporary ones lie, the private directory that the
processes share, and files of other programs, read again when they change.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from trident.core.errors import ErrorCode, ServerError

_RESERVED_FILES = 512
_MIN_CONNECTIONS = 64
_MAX_CONNECTIONS = 100_000


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one. Returns the number of connections that may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max_connections(hard)


def max_connections(limit: int) -> int:
    if limit == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(_MAX_CONNECTIONS, limit - _RESERVED_FILES))


# A container with a read-only root and no volume at /tmp has only the latter.


IN_MEMORY = "/dev/shm"


class NoTemporaryDirectory(ServerError):
    code = ErrorCode.UNAVAILABLE


def temporary_directory() -> str:
    """The directory, which `tempfile` uses from then on too. Raises NoTemporaryDirectory."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        if not os.access(IN_MEMORY, os.W_OK | os.X_OK):
            raise NoTemporaryDirectory(
                "no folder for temporary files can be written: neither that of TMPDIR, nor /tmp, /var/tmp, /usr/tmp, "
                f"the working directory or {IN_MEMORY}",
                hint="set TMPDIR to a folder that can be written; in Kubernetes mount an emptyDir at /tmp",
            ) from error
    tempfile.tempdir = IN_MEMORY
    return IN_MEMORY


_POLL_S = 0.5
_log = logging.getLogger("trident.server")

# Changes with the file's content, or with the file at the path; None: there is no file.
_State = tuple[tuple[int, ...] | None, ...]


class FileContent(Protocol):
    """Content made from the files at `paths`."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that belong together: one of them may be written before another."""

    def read_again(self) -> None:
        """Replace the content, or go on with the old one and log why. Called on the thread of the watch."""


class WatchedFiles:
    """Looks at files twice a second, on its own thread, and has those read again that have changed.

    Changed files are read when they have not changed between two looks: a program that writes them slowly, or one after
    the other, is given the time. `start` it after the fork; what has changed since it was made is read then.
    """

    def __init__(self, contents: Iterable[FileContent]) -> None:
        self._contents = {content: _state_of(content) for content in contents}
        self._end = threading.Event()

    def start(self) -> None:
        for content, read in self._contents.items():
            found = _state_of(content)
            if found != read:
                self._contents[content] = found
                content.read_again()
        if self._contents:
            threading.Thread(target=self._watch, name="trident-files", daemon=True).start()

    def close(self) -> None:
        self._end.set()

    def _watch(self) -> None:
        seen = dict(self._contents)
        while not self._end.wait(_POLL_S):
            for content, read in self._contents.items():
                before, seen[content] = seen[content], _state_of(content)
                if seen[content] != read and seen[content] == before:
                    self._contents[content] = before
                    content.read_again()


def _state_of(content: FileContent) -> _State:
    return tuple([_state(path) for path in content.paths])


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError as error:
        _log.debug("'%s' is not there: %s", path, error)
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


_PREFIX = "trident-"
# The kernel limits the address of a Unix socket to this length.
_MAX_ADDRESS = 107
# No engine has a longer number.
_MAX_ENGINES = 999


class NoPrivateDirectory(ServerError):
    code = ErrorCode.UNAVAILABLE


class PrivateDirectory:
    """A directory that the processes of one server share, and that only this user can enter (mode 0700).

    engine.sock   the socket on which the engine listens; engine-1.sock and so on for those after the first
    changes/      what clients have changed by request, for a restarted engine
    files/        the files that the engine unpacks, until it ends; files-1 and so on for those after the first
    served-0      an empty file: the first engine has served; served-1 and so on for those after the first
    metrics/      the front ends' counters of requests
    and folders of the platforms' applications, such as for the models that a platform loads

    All processes of the server hold a lock on it, which the kernel releases when the last of them has ended. A
    directory without a lock is abandoned, and the next server removes it. A pid would not do: pids are reused, and
    every container has its own.
    """

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
        return self.path / (f"engine-{engine}.sock" if engine else "engine.sock")

    def new_files(self, engine: int = 0) -> Path:
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
            if not number.isdigit() or path.lstat().st_uid != os.getuid():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _locked(folder: Path) -> Path:
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


def _not_made(what: str) -> NoPrivateDirectory:
    return NoPrivateDirectory(
        f"the directory that HTTP workers and engine share {what}",
        hint="set TMPDIR to a short, writable path, or use --http-workers=0",
    )
