"""An object of POSIX shared memory, which a client has made and the engine reads and writes.

It is a file of its client, who may shrink, unlink or change it at any time. So it is mapped on request only: `preadv`
and `pwritev` meet the end of a shrunken file with a short count or an error, where a map ends the process with SIGBUS.
For 600 KB they take 30 and 40 us, for 16 MB 1 and 2 ms; a copy into a map takes 8 us and 0.7 ms, and an input that is
read where it lies nothing at all.
Source: docs/spec/shared-memory.md section 3.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref

from core.errors import InvalidRequest, RegionFailed
from core.inference.tensors import Buffer

DIRECTORY = "/dev/shm"
_LONGEST_NAME = 255
# Others may read and write it.
_OPEN_TO_ALL = stat.S_IROTH | stat.S_IWOTH
# Not through a link, and without waiting for the other end if somebody put a pipe there.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class SystemMemory:
    """Any thread. The descriptor is closed with the last reference.

    `key` is the name under which it was opened, `identity` the device and the number of the file.
    """

    __slots__ = ("__weakref__", "_descriptor", "_mapped", "identity", "key")

    def __init__(self, descriptor: int, key: str, identity: tuple[int, int]) -> None:
        """Use `open_object`. Takes ownership of the descriptor."""
        self._descriptor = descriptor
        self.key = key
        self.identity = identity
        self._mapped = memoryview(b"")
        weakref.finalize(self, os.close, descriptor).atexit = False

    @property
    def size(self) -> int:
        """The size of the object now, in bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, content: memoryview) -> None:
        size = len(content)
        done = 0
        while done < size:
            count = os.preadv(self._descriptor, [content[done:]], offset + done)
            if not count:
                raise self._shrunk("read", offset, size)
            done += count

    def write(self, offset: int, content: Buffer) -> None:
        content = memoryview(content)
        size = len(content)
        # Writing behind the end would make it grow again.
        if offset + size > self.size:
            raise self._shrunk("written", offset, size)
        done = 0
        while done < size:
            try:
                done += os.pwritev(self._descriptor, [content[done:]], offset + done)
            except OSError as error:  # the memory of all such objects is used up
                raise RegionFailed(
                    f"unable to write {size} bytes at {offset} of shared memory '{self.key}': {error.strerror}",
                    hint=f"look at the room in {DIRECTORY}: df {DIRECTORY}",
                ) from error

    def on_device(self, offset: int, size: int) -> None:
        """It is memory of the host."""

    def view(self, offset: int, size: int) -> memoryview:
        end = offset + size
        actual = self.size
        if end > actual:
            raise self._shrunk("used", offset, size)
        mapped = self._mapped
        if end > len(mapped):
            try:
                mapped = self._mapped = memoryview(mmap.mmap(self._descriptor, actual))
            except (OSError, ValueError) as error:
                raise RegionFailed(f"unable to map shared memory '{self.key}': {error}") from error
        return mapped[offset:end]

    def _shrunk(self, action: str, offset: int, size: int) -> InvalidRequest:
        return InvalidRequest(
            f"{size} bytes at {offset} of shared memory '{self.key}' cannot be {action}, it has only {self.size} bytes",
            hint="the object was made smaller after its region was registered",
        )


def name_of(key: str) -> str:
    """The file of the object `key`, "" if there can be none."""
    return key.lstrip("/")


def _is_file_name(name: str) -> bool:
    try:
        content = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return b"\0" not in content and len(content) <= _LONGEST_NAME


def open_object(key: str, directory: str = DIRECTORY) -> SystemMemory:
    """Open the object `key`. Raises RegionFailed with Triton's text."""
    name = name_of(key)
    if "/" in name or name in (".", "..") or not _is_file_name(name):
        raise _not_opened(key, "a key is the name of one object: no slashes but at its beginning, at most 255 bytes")
    try:
        descriptor = os.open(os.path.join(directory, name), _FLAGS)
    except OSError as error:
        raise _not_opened(
            key,
            f"{directory}/{name}: {error.strerror}; make it first, so that the server may read and write it",
        ) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _not_opened(key, f"{directory}/{name} is no shared memory")
        # The superuser can open everything, which no client may make use of.
        if found.st_uid != os.geteuid() and found.st_mode & _OPEN_TO_ALL != _OPEN_TO_ALL:
            raise _not_opened(
                key,
                f"{directory}/{name} belongs to user {found.st_uid}, the server is user {os.geteuid()}: run both as "
                "one user, or let others read and write it (chmod 666)",
            )
    except BaseException:
        os.close(descriptor)
        raise
    return SystemMemory(descriptor, key, (found.st_dev, found.st_ino))


def _not_opened(key: str, hint: str) -> RegionFailed:
    return RegionFailed(f"Unable to open shared memory region: '{key}'", hint=hint)
