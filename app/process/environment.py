"""The surroundings of a process: its environment variables, which no other module of app reads or changes; the
garbage collector, the heap and the interpreter's lock; and its end, by a stop signal or without finalisation.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from trident.core.observability.hardware import trim_heap


def process_environment() -> dict[str, str]:
    return dict(os.environ)


def replace_process_environment(variables: Mapping[str, str]) -> None:
    """Replace the variables of this process. Modules imported before may have read the old ones."""
    os.environ.clear()
    os.environ.update(variables)


def has_colours() -> bool:
    """Return whether a terminal may get colours: NO_COLOR, whatever its value, forbids it."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def announce_metrics_directory(path: str) -> None:
    """Name the directory in which the metrics library of this process and its children shares its counters."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = path


def show_gpus(visible: str) -> None:
    """Have CUDA show this process only the GPUs in `visible`. Call it before CUDA is loaded."""
    os.environ["CUDA_VISIBLE_DEVICES"] = visible


def write_no_bytecode() -> None:
    """Keep the processes of Python models from writing compiled code beside it, where a signed model has no file."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def let_openmp_sleep() -> None:
    """Have OpenMP's threads sleep while they wait for each other. Call it before a library that has OpenMP is loaded.

    By default they spin: a module of PyTorch with two threads then takes ten times the time beside busy processes.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


# --- memory: retained for the next large body, returned to the system when the process is idle

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
    """Let all threads of the process share one heap of glibc; for a process that keeps a response cache, or lets go of
    models: what a thread's own heap has free at its end never returns to the system. Call it before the first thread:
    heaps that exist are used on.

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
        idle_s: float = 5.0,
        collect: Callable[[], object] = settle_collector,
    ) -> None:
        """`trim` is by default glibc's `malloc_trim`, and nothing under another C library."""
        self._release = release
        self._collect = collect
        self._trim = trim
        self._idle_s = idle_s
        self._last_work = 0.0
        self._trimmed = True

    def tick(self, now: float, last_work: float) -> None:
        """`last_work` is the time of the last progress of a request. Both are seconds of the coarse clock."""
        if last_work > self._last_work:
            self._last_work = last_work
            self._trimmed = False
        elif not self._trimmed and now - self._last_work > self._idle_s:
            self._trimmed = True
            self._release()
            self._collect()
            self._trim()


# --- the interpreter's lock

# Python's default is 5 ms. The hub gives the lock up with each system call, a few times for each request, and waits
# that long to get it back while another thread reads a large text. With 44 MB of strings being read, health took 221 ms
# at the 99th percentile, and takes 18 ms with this interval.
_INTERVAL_S = 0.0005


def share_interpreter_lock() -> None:
    """Have threads alternate in short steps. Call it once in each process that has a hub or runs models."""
    sys.setswitchinterval(_INTERVAL_S)


# --- the end

# A stop whose exit timeout ended before all requests in flight were answered.
EXIT_NOT_DRAINED = 1
# The site or the engine cannot serve, and a restart would not change that. Gunicorn's own codes are 3 and 4.
EXIT_FAILED = 5


def exit_now(code: int) -> NoReturn:
    """End this process without Python's finalisation, which waits for threads and may meet native ones at work."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# A stop signal may come before the server has begun. Without a handler it is lost in a container, where the kernel
# delivers to the first process only what that handles: `docker stop` would wait for its time-out and kill. And for
# SIGINT Python would print the traceback of an import.

# Signals of timers and other programs' conventions. The server gives a meaning to SIGUSR1 and SIGUSR2 when it begins.
_STRAY = (
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGSTKFLT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def end_at_stop_signals() -> None:
    """End the process at once, as after a stop, until others handle SIGTERM and SIGINT. The main thread only."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def pass_over_stray_signals() -> None:
    """Ignore signals that a server does not use, here and in forked processes. The main thread only.

    They have a handler, because ignored ones would stay ignored in the programs that models start.
    """
    for number in _STRAY:
        signal.signal(number, lambda *_: None)


def _end(number: int, frame: object) -> None:
    # No exception: one that is raised in the middle of an import may be taken for a failure of it, or be swallowed.
    os._exit(0)
