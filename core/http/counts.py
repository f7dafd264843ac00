"""The counts of all answers of HTTP by method, route and status: a number in memory for each combination.

A Counter of the metrics library takes a lock, and in several processes writes to a file: too slow for the infer routes.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

# A slot has the length of a key, the key in JSON, and at the end the number.
_SLOT_BYTES = 256
_LENGTH_BYTES = 2
_NUMBER_BYTES = 8
_LONGEST_KEY = _SLOT_BYTES - _LENGTH_BYTES - _NUMBER_BYTES
_WORDS = _SLOT_BYTES // _NUMBER_BYTES

TABLE_BYTES = 512 * _SLOT_BYTES
"""Enough: routes have a few dozen rules, and each is answered with a few methods and statuses."""


class Answer(NamedTuple):
    """What is counted; `route` is the label of the route, empty for a path without a route."""

    method: str
    route: str
    status: int


class ResponseCounts:
    """The counts of one process, in `table`, which may be memory that others read. One thread at a time.

    A table that has counts is continued.
    """

    def __init__(self, table: bytearray | mmap | None = None) -> None:
        """`table` has TABLE_BYTES bytes; None: memory of this process."""
        self._table = bytearray(TABLE_BYTES) if table is None else table
        self._numbers = memoryview(self._table).cast("Q")[_WORDS - 1 :: _WORDS]
        self._indices: dict[tuple[str, str, int], int] = {
            answer: index for index, (answer, _) in enumerate(read_counts(self._table))
        }

    def add(self, method: str, route: str, status: int) -> None:
        """Count one answer; does nothing if the table is full."""
        index = self._indices.get((method, route, status))
        if index is None:
            index = self._new_slot(Answer(method, route, status))
        if index < len(self._numbers):
            self._numbers[index] += 1

    def items(self) -> Iterator[tuple[Answer, int]]:
        return read_counts(self._table)

    def _new_slot(self, answer: Answer) -> int:
        """The index of the next free slot, the number of slots if there is none."""
        index, key = len(self._indices), json.dumps(answer).encode()
        if index == len(self._numbers) or len(key) > _LONGEST_KEY:
            return len(self._numbers)
        start = index * _SLOT_BYTES
        self._table[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(key)] = key
        # Last, because the length tells readers that the slot is complete.
        self._table[start : start + _LENGTH_BYTES] = len(key).to_bytes(_LENGTH_BYTES, "little")
        self._indices[answer] = index
        return index


def read_counts(table: bytes | bytearray | mmap) -> Iterator[tuple[Answer, int]]:
    """The counts in a table, which its owner may change meanwhile."""
    for start in range(0, len(table), _SLOT_BYTES):
        slot = bytes(table[start : start + _SLOT_BYTES])
        length = int.from_bytes(slot[:_LENGTH_BYTES], "little")
        if not length:
            return
        method, route, status = json.loads(slot[_LENGTH_BYTES : _LENGTH_BYTES + length])
        yield Answer(method, route, status), int.from_bytes(slot[-_NUMBER_BYTES:], "little")


# Each process counts in its own file, which is mapped into its memory, so that counting is an addition in memory and
# the counts of a dead process stay.


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
