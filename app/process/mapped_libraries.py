"""The pages of libraries that only the start of a process has needed.

A library's start runs and reads much that nothing needs later: ONNX Runtime registers its operators, numpy its
functions, OpenSSL its algorithms, and every fault maps the pages around it too. The kernel would take these pages back
only when memory is short.
Source: proc(5) on `maps` and `pagemap`, madvise(2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path

_DONT_NEED = 4
_ENTRY_SIZE = 8
# Of an entry of `pagemap`: whether the page is in memory or swapped out, and whether it is one of a file.
_EXISTS = 3 << 62
_OF_FILE = 1 << 61
_MAPS = Path("/proc/self/maps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r[w-][x-]p) \S+ \S+ \S+ +(/.*)")


def release_library_pages() -> int:
    """Unmap the code and the constants of all libraries; what is used again is mapped again, from the page cache.

    Call it when the start of a process is over. Returns the number of mappings, 0 if the system does not offer it.
    Takes a few milliseconds, and the next requests a few more.
    """
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return 0
    library = ctypes.PyDLL(None)
    try:
        # Not dl_iterate_phdr: with its lock, this thread would wait for the interpreter's, and one that has the
        # interpreter's and loads a library would wait for that of the list.
        found = _read_only_mappings(_MAPS.read_text().splitlines())
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a sandbox without them
        return 0
    released = 0
    try:
        for start, size in found:
            if _is_clean(pagemap, start, size):
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _DONT_NEED)
                released += 1
    finally:
        os.close(pagemap)
    return released


def _read_only_mappings(lines: Iterable[str]) -> list[tuple[int, int]]:
    """The first address and the bytes of each mapping of a file with code that is not writable: code and constants."""
    mappings = [match.groups() for match in map(_MAPPING.fullmatch, lines) if match]
    libraries = {path for _, _, access, path in mappings if "x" in access}
    return [
        (int(start, 16), int(end, 16) - int(start, 16))
        for start, end, access, path in mappings
        if path in libraries and "w" not in access
    ]


def _is_clean(pagemap: int, start: int, size: int) -> bool:
    """Whether no page is a private copy, such as one with a debugger's breakpoint: it would be lost."""
    length = size // mmap.PAGESIZE * _ENTRY_SIZE
    entries = os.pread(pagemap, length, start // mmap.PAGESIZE * _ENTRY_SIZE)
    if len(entries) != length:
        return False
    return all(entry & _OF_FILE for entry in set(array("Q", entries)) if entry & _EXISTS)
