"""The memory of the worker's heap: kept for the next large body, and returned to the system when idle."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from app.process.garbage_collector import collect_exempt, is_much_exempt
from core.observability.hardware.host_memory import trim_heap

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Answers of 64 clients that are echoed images as JSON come and go by more than 16 MiB: with that, and with less memory
# for bodies (core/frontend/request_body.py), each took 400 to 550 pages that had to be cleared, and now 100 to 280.
_KEPT = 128 << 20
_MAPPED_FROM = 4 << 20


def keep_freed_memory() -> bool:
    """Let glibc keep up to 128 MiB of freed memory until the process is idle, instead of returning it to the system
    after every large body.

    Otherwise each body of 600 KB gets new pages, which the kernel has to clear: 655 instead of 310 microseconds per
    echoed request at 16 connections. Returns False if the C library does not have these options.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(_M_TRIM_THRESHOLD, _KEPT) and library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM))


def use_one_heap() -> bool:
    """Let all threads of the process share one heap of glibc; for a process that keeps a response cache.

    Otherwise an answer that one thread kept and another one removed leaves a hole in the heap of the first: a full
    cache of 100 MB grew to 119 MB while answers of different sizes replaced each other. With one heap it is 102 MB.
    Returns False if the C library does not have this option.
    """
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and bool(library.mallopt(_M_ARENA_MAX, 1))


class IdleTrim:
    """Returns freed memory to the system when the worker has been idle for a while.

    The large bodies of many connections leave holes in the heap, which then cannot shrink: a worker that held 64 images
    as JSON stayed 200 MB larger. Trimming takes milliseconds, so it waits for a time without requests, and so does the
    full garbage collection before it, unless there may be too much garbage to wait for that. `release` does the same
    for the memory that processes share.
    """

    def __init__(
        self,
        release: Callable[[], object] = lambda: None,
        trim: Callable[[], object] | None = None,
        rest_s: float = 5.0,
        collect: Callable[[], object] = collect_exempt,
        must_collect: Callable[[], bool] = is_much_exempt,
    ) -> None:
        """`trim` is by default glibc's `malloc_trim`, and nothing under another C library."""
        self._release = release
        self._collect = collect
        self._must_collect = must_collect
        self._trim = trim or trim_heap
        self._rest_s = rest_s
        self._last_work = 0.0
        self._trimmed = True

    def tick(self, now: float, last_work: float) -> None:
        """`last_work` is the time of the last progress of a request. Both are seconds of the coarse clock."""
        if last_work > self._last_work:
            self._last_work = last_work
            self._trimmed = False
            if self._must_collect():
                self._collect()
        elif not self._trimmed and now - self._last_work > self._rest_s:
            self._trimmed = True
            self._release()
            self._collect()
            self._trim()
