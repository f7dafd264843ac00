"""A file that is being downloaded in parts, and what of it has come, also for the next start.

Beside `<name>.part` a journal `<name>.ranges` names the parts that are complete, a line each: the process may end at
any moment. It is not meant to outlive a power failure; what was lost then is found by the checksum.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from core.errors import RepositoryUnavailable
from core.repository.cache.disk_space import disk_failure, is_full
from core.repository.cache.file_lock import FileLock

# Small enough to stay in a core's cache between the copy and the hash.
PIECE_BYTES = 256 << 10


class PartialFile:
    """The file under an exclusive lock, which is its own from here on. Any number of threads may write different parts.

    Methods that touch the disk raise RepositoryUnavailable; where the disk is full, the file has been discarded.
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
        """Where a part begins and where it ends, in bytes."""
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
        """All bytes of `part` are written."""
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
        """What was written to [start, stop), in pieces, each in the place of the one before: look before the next."""
        buffer = memoryview(bytearray(min(PIECE_BYTES, max(0, stop - start))))
        while start < stop:
            try:
                size = os.preadv(self._lock.fd, [buffer[: stop - start]], start)
            except OSError as error:
                raise self._failed(error) from error
            if not size:
                raise RepositoryUnavailable(f"{self.path} was cut short while it was downloaded")
            yield buffer[:size]
            start += size

    def discard(self) -> None:
        """Remove it; what other threads still write goes nowhere."""
        try:
            self._journal_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            os.ftruncate(self._lock.fd, 0)
        except OSError as error:
            raise disk_failure(error, self.path.parent.parent, 0) from error

    def move_to(self, blob: Path) -> None:
        """Its end as a partial file: complete and read-only at `blob`. Raises OSError."""
        self.path.rename(blob)
        # After the move: what is left behind when the process ends here must be open to another attempt.
        os.fchmod(self._lock.fd, 0o400)
        self._journal_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the lock; what has come stays. A second call does nothing."""
        self._lock.release()

    def _restart(self) -> None:
        # In this order: a journal is believed only beside a file of the full size.
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
        # A last line without its end was being written when the process ended: 1 may have been meant to be 17.
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
        return failure


def journal_path(part: Path) -> Path:
    return part.with_suffix(".ranges")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
