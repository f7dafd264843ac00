"""A file that is downloaded in parts, and the record of the complete parts, which a later start resumes from.

Beside `<name>.part`, the journal `<name>.ranges` names the complete parts, one per line, because the process may end at
any moment. It need not survive a power failure: the checksum detects what that loses.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.disk import FileLock, disk_failure, disk_failures, is_full
from trident.core.repository.stores.object_store import Checksum, Hash

# Hashes that identify a content; a CRC does not.
_NAMING = frozenset({"md5", "sha1", "sha256", "sha384", "sha512"})


class ContentHash:
    """A checksum that takes the content from beginning to end, in pieces of any size."""

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._current = checksum.make()
        self._in_part = 0
        self._digests: list[str] = []

    def update(self, content: bytes | memoryview) -> None:
        size = self._checksum.part_size
        while size and self._in_part + len(content) > size:
            room = size - self._in_part
            self._current.update(content[:room])
            content = content[room:]
            self._end_part()
        self._current.update(content)
        self._in_part += len(content)

    def value(self) -> str:
        """The checksum of the content so far, in hex as the storage writes it."""
        if not self._checksum.part_size:
            return self._current.hexdigest().lower()
        if self._in_part or not self._digests:
            self._end_part()
        whole = self._checksum.make()
        whole.update(bytes.fromhex("".join(self._digests)))
        return whole.hexdigest().lower()

    def _end_part(self) -> None:
        self._digests.append(self._current.hexdigest())
        self._current = self._checksum.make()
        self._in_part = 0


def digest_checksum(digest: str) -> Checksum | None:
    """The Checksum of a listing's digest, such as `md5:<hex>`; None for a digest that does not identify a content."""
    name, _, value = digest.partition(":")
    if name not in _NAMING or not value:
        return None
    return Checksum(name, value.lower(), _maker(name))


def _maker(name: str) -> Callable[[], Hash]:
    return lambda: hashlib.new(name, usedforsecurity=False)


# Small enough to stay in a core's cache between the copy and the hash.
PIECE_BYTES = 512 << 10


class PartialFile:
    """The file under an exclusive lock, which this object takes over. Several threads may write different parts.

    Methods that use the disk raise RepositoryUnavailable; if the disk is full, they discard the file first.
    """

    def __init__(self, lock: FileLock, size: int, part_bytes: int) -> None:
        self.path = lock.path
        self.size = size
        self.part_bytes = part_bytes
        self.parts = max(1, -(-size // part_bytes))
        self._lock = lock
        self._journal_path = journal_path(lock.path)
        self._journal_lock = threading.RLock()
        self._header = f"{size} {part_bytes}\n".encode()
        self._finished: set[int] = set()
        try:
            self._finished = self._read_journal()
            if not self._finished:
                self._restart()
        except OSError as error:
            failure = self._failed(error)
            lock.release()
            raise failure from error

    def range_of(self, part: int) -> tuple[int, int]:
        """The beginning and the end of a part, in bytes."""
        start = part * self.part_bytes
        return start, min(self.size, start + self.part_bytes)

    def unfinished(self) -> list[int]:
        return [part for part in range(self.parts) if part not in self._finished]

    def is_finished(self, part: int) -> bool:
        return part in self._finished

    def finished_bytes(self) -> int:
        with self._journal_lock:
            return sum(stop - start for start, stop in map(self.range_of, self._finished))

    def write(self, offset: int, piece: bytes) -> None:
        try:
            done = 0
            while done < len(piece):
                done += os.pwrite(self._lock.fd, memoryview(piece)[done:] if done else piece, offset + done)
        except OSError as error:
            raise self._failed(error) from error

    def finish(self, part: int) -> None:
        """Record that all bytes of `part` are written."""
        with self._journal_lock:
            self._finished.add(part)
            if self.parts == 1:
                return
            try:
                with open(self._journal_path, "ab", opener=_private) as journal:
                    journal.write((b"" if journal.tell() else self._header) + f"{part}\n".encode())
            except OSError as error:
                raise self._failed(error) from error

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes [start, stop) in pieces. Each piece overwrites the previous one: use it before taking the next."""
        buffer = memoryview(bytearray(min(PIECE_BYTES, max(0, stop - start))))
        while start < stop:
            try:
                size = os.preadv(self._lock.fd, [buffer[: stop - start]], start)
            except OSError as error:
                raise self._failed(error) from error
            if not size:
                raise RepositoryUnavailable(f"{self.path} was truncated during the download")
            yield buffer[:size]
            start += size

    def discard(self) -> None:
        """Remove the file; what other threads still write to it is lost."""
        with disk_failures(self.path.parent.parent):
            self._journal_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def move_to(self, blob: Path) -> None:
        """Move the complete file to `blob`, read-only. Raises OSError."""
        self.path.rename(blob)
        # After the move: if the process ends before it, another attempt must be able to write to the file.
        os.fchmod(self._lock.fd, 0o400)
        self._journal_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock and keep the file. A second call does nothing."""
        self._lock.release()

    def _restart(self) -> None:
        # In this order, because a journal is valid only beside a file of the full size.
        self._journal_path.unlink(missing_ok=True)
        self._finished = set()
        os.ftruncate(self._lock.fd, 0)
        os.ftruncate(self._lock.fd, self.size)

    def _read_journal(self) -> set[int]:
        if self.parts == 1 or os.fstat(self._lock.fd).st_size != self.size:
            return set()
        try:
            content = self._journal_path.read_bytes()
        except FileNotFoundError:
            return set()
        header, _, rest = content.partition(b"\n")
        if header + b"\n" != self._header:
            return set()
        # A last line without a line end is incomplete: the process ended while it was written, so 1 may stand for 17.
        lines = rest.split(b"\n")[:-1]
        if not all(line.isdigit() and int(line[:20]) < self.parts for line in lines):
            return set()
        if not rest.endswith(b"\n"):
            os.truncate(self._journal_path, content.rfind(b"\n") + 1)
        return {int(line) for line in lines}

    def _failed(self, error: OSError) -> RepositoryUnavailable:
        failure = disk_failure(error, self.path.parent.parent, self.size - self.finished_bytes())
        if is_full(error):
            self.discard()
            os.ftruncate(self._lock.fd, 0)  # frees the space now, not when the last descriptor is closed
        return failure


def journal_path(part: Path) -> Path:
    return part.with_suffix(".ranges")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
