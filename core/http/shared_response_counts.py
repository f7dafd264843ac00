"""The counts of answers of several processes, summed.

Each process counts in its own file, which is mapped into its memory, so that counting is an addition in memory and the
counts of a dead process stay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path

from core.http.response_counts import TABLE_BYTES, Answer, ResponseCounts, read_counts

_log = logging.getLogger("trident.http")


class SharedResponseCounts:
    """`counts` are those of this process, for all its applications. Without room on the disk they are not shared."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own = directory / f"responses_{os.getpid()}.table"
        self.counts = ResponseCounts(_mapped(self._own))

    def items(self) -> Iterator[tuple[Answer, int]]:
        """The counts of all processes, also of those that have ended; an answer may have several."""
        yield from self.counts.items()
        for path in self._directory.glob("responses_*.table"):
            if path != self._own:
                yield from read_counts(path.read_bytes())


def _mapped(path: Path) -> mmap | None:
    """The file in memory, with its room on the disk: a write to a mapped page without room would end the process."""
    try:
        with path.open("a+b") as file:
            os.posix_fallocate(file.fileno(), 0, TABLE_BYTES)
            return mmap(file.fileno(), TABLE_BYTES)
    except OSError as error:
        _log.warning("no room to count responses in %s: %s", path, error.strerror)
        path.unlink(missing_ok=True)
        return None
