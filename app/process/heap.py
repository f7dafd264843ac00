"""The memory of the worker's heap: kept for the next large body, and returned to the system when idle."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

from trident.core.observability.hardware import trim_heap

_ALLOCATIONS_WHILE_STARTING = 20_000
# An object takes up to 0.3 µs (a greenlet with its frames, not in the caches), and two batches are traversed at most.
_ALLOCATIONS_WHILE_SERVING = 1_500
_NEVER = 1 << 30
# Collections of young objects after which the exempt ones are counted: that reads all of them, 1 ms for 100,000.
_COUNTED_AFTER = 256
_MORE_THAN_BEFORE = 50_000

# Collections of young objects since the exempt ones were counted, and how many of those a full collection left.
_collections = 0
_left = 0


def collect_rarely() -> None:
    """Collect after many allocations. Call it before the imports of a server, whose objects stay: by default the
    collector would traverse them about 180 times, a tenth of the time until the server is ready."""
    gc.set_threshold(_ALLOCATIONS_WHILE_STARTING, 10, 10)


def keep_memory_shared() -> None:
    """Exempt all present objects from collection. Call it before a fork: a collection in the child would write into
    all of them, and the child would get its own copy of their pages (two HTTP workers: 25 MB)."""
    gc.freeze()


def settle_collector() -> None:
    """Exempt all present objects from collection, and those of later that survive two collections.

    So that no collection holds up requests for a millisecond, however many objects there are: 10,000 connections are
    300,000 objects, which a full collection would traverse in 50 ms. An exempt object goes when nothing refers to it;
    only garbage with reference cycles that was in use during two collections stays until `collect_exempt`: a Python
    model that was unloaded, or one of a hundred requests that went through Flask. Call it when all long-lived objects
    exist; it collects once in full.
    """
    _collect()
    # Each second collection is one of both younger generations, and what it leaves is exempt: the oldest one is empty.
    gc.set_threshold(_ALLOCATIONS_WHILE_SERVING, 0, _NEVER)
    if _exempt_survivors not in gc.callbacks:
        gc.callbacks.append(_exempt_survivors)


def collect_exempt() -> None:
    """Collect in full, the exempt objects too. It takes 10 to 50 ms: call it when no request would wait for it."""
    gc.unfreeze()
    _collect()


def is_much_exempt() -> bool:
    """Whether there are so many more exempt objects than after the last full collection that some may be garbage: half
    as many again, and 50,000. A server that is never idle then has to `collect_exempt` while requests wait."""
    global _collections
    if _collections < _COUNTED_AFTER:
        return False
    _collections = 0
    return gc.get_freeze_count() > _left + _left // 2 + _MORE_THAN_BEFORE


def _collect() -> None:
    global _collections, _left
    gc.collect()
    gc.freeze()
    _collections, _left = 0, gc.get_freeze_count()


def _exempt_survivors(phase: str, found: dict[str, int]) -> None:
    global _collections
    if phase == "stop" and found["generation"] == 1:
        gc.freeze()
        _collections += 1


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


# Python's default is 5 ms. The hub gives the lock up with each system call, a few times for each request, and waits
# that long to get it back while another thread reads a large text. With 44 MB of strings being read, health took 221 ms
# at the 99th percentile, and takes 18 ms with this interval.
_INTERVAL_S = 0.0005


def share_interpreter_lock() -> None:
    """Have threads take turns in short steps. Call it once in each process that has a hub or runs models."""
    sys.setswitchinterval(_INTERVAL_S)
