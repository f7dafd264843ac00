"""How the worker's allocator treats the buffers of large bodies."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT = 16 << 20
_MAPPED_FROM = 4 << 20


def keep_freed_memory() -> bool:
    """Let glibc keep up to 16 MiB of freed memory instead of handing it back after every large body.

    Without it each body of 600 KB is made of pages that the kernel clears anew: 655 instead of 310 microseconds per
    echoed request at 16 connections. Returns False where the C library has no such options.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(_M_TRIM_THRESHOLD, _KEPT) and library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM))
