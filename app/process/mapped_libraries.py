"""The pages of libraries that only the start of a process has needed.

A library's start runs and reads much that nothing needs later: ONNX Runtime registers its operators, numpy its
functions, OpenSSL its algorithms, and every fault maps the pages around it too. The kernel would take these pages back
only when memory is short.
Source: dl_iterate_phdr(3), madvise(2), proc(5) on `pagemap`, elf(5).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from array import array
from typing import Any

_LOADED = 1
_WRITABLE = 2
_DONT_NEED = 4
_ENTRY_SIZE = 8
# Of an entry of `pagemap`: whether the page is in memory or swapped out, and whether it is one of a file.
_EXISTS = 3 << 62
_OF_FILE = 1 << 61


class _Segment(ctypes.Structure):
    """Elf64_Phdr."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical_address", ctypes.c_uint64),
        ("file_size", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
    )


class _Library(ctypes.Structure):
    """The beginning of struct dl_phdr_info."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
    )


_Visit: Any = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)


def release_library_pages() -> int:
    """Unmap the code and the constants of all libraries; what is used again is mapped again, from the page cache.

    Call it when the start of a process is over. Returns the number of segments, 0 if the system does not offer it.
    Takes a few milliseconds, and the next requests a few more.
    """
    # This instance keeps the interpreter's lock: a thread that loads a library has it, and would wait for the list of
    # libraries while this thread, with the list, waited for the lock.
    library = ctypes.PyDLL(None)
    if sys.platform != "linux" or sys.maxsize < 2**32 or not hasattr(library, "dl_iterate_phdr"):
        return 0
    try:
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a sandbox without it
        return 0
    released = 0
    try:
        for start, size in _read_only_segments(library):
            if _is_clean(pagemap, start, size):
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _DONT_NEED)
                released += 1
    finally:
        os.close(pagemap)
    return released


def _read_only_segments(library: ctypes.PyDLL) -> list[tuple[int, int]]:
    """The first address and the bytes, in whole pages, of each segment that the loader never writes to."""
    found = []

    def visit(info: Any, size: int, data: Any) -> int:
        loaded = info.contents
        for segment in loaded.segments[: loaded.count]:
            if segment.type == _LOADED and not segment.flags & _WRITABLE:
                start = loaded.base + segment.address & -mmap.PAGESIZE
                end = loaded.base + segment.address + segment.size + mmap.PAGESIZE - 1 & -mmap.PAGESIZE
                found.append((start, end - start))
        return 0

    library.dl_iterate_phdr(_Visit(visit), None)
    return found


def _is_clean(pagemap: int, start: int, size: int) -> bool:
    """Whether no page is a private copy, such as one with a debugger's breakpoint: it would be lost."""
    length = size // mmap.PAGESIZE * _ENTRY_SIZE
    entries = os.pread(pagemap, length, start // mmap.PAGESIZE * _ENTRY_SIZE)
    if len(entries) != length:
        return False
    return all(entry & _OF_FILE for entry in set(array("Q", entries)) if entry & _EXISTS)
