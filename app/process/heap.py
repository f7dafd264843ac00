"""The memory of a process: the garbage collector, the heap that is kept for the next large body, and its return to the
system when the process is idle. And the interval of the interpreter's lock."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

from trident.core.observability.hardware import trim_heap

_ALLOCATIONS_WHILE_STARTING = 20_000
# Collections of all objects that requests have left are rare: they come after 256 others, and only if a quarter of the
# objects is new. The others traverse two batches of this many objects at most, up to 0.3 µs each.
_WHILE_SERVING = (1_500, 0, 256)


def collect_rarely() -> None:
    """Collect after many allocations. Call it before the imports of a server, whose objects stay: by default the
    collector would traverse them about 180 times, a tenth of the time until the server is ready."""
    gc.set_threshold(_ALLOCATIONS_WHILE_STARTING, 10, 10)


def keep_memory_shared() -> None:
    """Exempt all present objects from collection. Call it before a fork: a collection in the child would write into
    all of them, and the child would get its own copy of their pages (two HTTP workers: 25 MB)."""
    gc.freeze()


def settle_collector() -> None:
    """Collect in full, and exempt what is left from the collections to come, so that they do not traverse the objects
    of a whole server. It takes 10 to 50 ms: call it when all long-lived objects exist, and when no request would wait.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_WHILE_SERVING)


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Answers of 64 clients that are echoed images as JSON come and go by more than 16 MiB: with that, and with less memory
# for bodies (core/frontend/request.py), each took 400 to 550 pages that had to be cleared, and now 100 to 280.
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
    full garbage collection before it. `release` does the same for the memory that processes share.
    """

    def __init__(
        self,
        release: Callable[[], object] = lambda: None,
        trim: Callable[[], object] = trim_heap,
        rest_s: float = 5.0,
        collect: Callable[[], object] = settle_collector,
    ) -> None:
        """`trim` is by default glibc's `malloc_trim`, and nothing under another C library."""
        self._release = release
        self._collect = collect
        self._trim = trim
        self._rest_s = rest_s
        self._last_work = 0.0
        self._trimmed = True

    def tick(self, now: float, last_work: float) -> None:
        """`last_work` is the time of the last progress of a request. Both are seconds of the coarse clock."""
        if last_work > self._last_work:
            self._last_work = last_work
            self._trimmed = False
        elif not self._trimmed and now - self._last_work > self._rest_s:
            self._trimmed = True
            self._release()
            self._collect()
            self._trim()


# Python's default is 5 ms. The hub gives the lock up with each system call, a few times for each request, and waits
# that long to get it back while another thread reads a large text. With 44 MB of strings being read, health took 221 ms
# at the 99th percentile, and takes 18 ms with this interval.
_INTERVAL_S = 0.0005


def share_interpreter_lock() -> None:
    """Have threads take turns in short steps. Call it once in each process that has a hub or runs models."""
    sys.setswitchinterval(_INTERVAL_S)
