"""Large weights in huge pages of the system.

A session that ends gives its weights back page by page, and ONNX Runtime's bindings hold the interpreter's lock
meanwhile: 100 MB in pages of 4 KB stop the process for 8 to 12 ms, in pages of 2 MB for less than 1. A model that reads
all its weights for a small batch also runs faster, because the processor finds 2 MB with one entry of its tables (a
product with 100 MB, batch 1: half the time). Copying the weights takes 0.3 ms of CPU time for a MB, once for each load,
without the interpreter's lock.
Source: madvise(2), MADV_COLLAPSE (Linux 6.1); proc_pid_smaps(5).
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

LARGE_BYTES = 16 << 20
"""A model whose files have fewer bytes stays in pages of the usual size: its end takes a millisecond."""

_COLLAPSE = 25
_HUGE = 2 << 20
_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)")
_PRIVATE = "rw-p"
# What one thread moves, the next one does not look at.
_turn = threading.Lock()


class Mapping(NamedTuple):
    """Private memory without a file, from `start` to `end`; `resident` and `huge` are bytes of it."""

    start: int
    end: int
    resident: int
    huge: int

    @property
    def is_worth_it(self) -> bool:
        """Whether it is filled, so that huge pages take no further memory, and not in huge pages yet."""
        size = self.end - self.start
        return size >= _HUGE and self.resident >= 0.9 * size and self.huge < 0.5 * size


def begin_to_use_huge_pages() -> None:
    """Do `use_huge_pages` on a thread of its own, because a model may serve meanwhile: nobody waits for it."""
    threading.Thread(target=_in_turn, name="huge-pages", daemon=True).start()


def await_huge_pages() -> None:
    """Wait for what was begun. A load beside it would take one more core from those who serve."""
    with _turn:
        pass


def _in_turn() -> None:
    with _turn:
        use_huge_pages()


def use_huge_pages() -> int:
    """Move what fills large private mappings of this process into huge pages. Returns the bytes of the mappings moved.

    Any thread; blocks for about a millisecond for each MB. Contents and addresses stay. Nothing happens where the
    system cannot do it.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return 0
    try:
        lines = _SMAPS.read_text().splitlines()
    except OSError:
        return 0
    moved = 0
    for mapping in mappings_of(lines):
        start, end = -(-mapping.start // _HUGE) * _HUGE, mapping.end // _HUGE * _HUGE
        if mapping.is_worth_it and start < end:
            failed = madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _COLLAPSE)
            moved += 0 if failed else end - start
    return moved


def mappings_of(smaps: Iterable[str]) -> Iterator[Mapping]:
    """The private mappings without a file and without a name in the lines of an smaps file."""
    start = end = resident = 0
    for line in smaps:
        found = _MAPPING.fullmatch(line)
        if found is not None:
            is_anonymous = found[3] == _PRIVATE and not found[4]
            start, end = (int(found[1], 16), int(found[2], 16)) if is_anonymous else (0, 0)
        elif end and line.startswith("Rss:"):
            resident = _bytes(line)
        elif end and line.startswith("AnonHugePages:"):
            yield Mapping(start, end, resident, _bytes(line))


def _bytes(line: str) -> int:
    return int(line.split()[1]) * 1024
