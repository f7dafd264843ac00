"""Large buffers: a pool of them, the memory into which request bodies are received, aligned for their tensors, and the
bound of what unfinished bodies hold together.

Fresh memory has to be cleared by the kernel, page by page: that takes longer than the copy into it (16 MB: 3 ms, and
40 ms of CPU on a busy machine where the kernel also looks for huge pages, instead of 2).
"""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

KEPT = 64 << 20
# The C library keeps smaller ones.
_SMALL = 65536
_PAGE = mmap.PAGESIZE


class BufferPool:
    """Any thread. `kept` is how many bytes of unused memory stay at most, the sizes that were used last.

    Sizes are rounded up by an eighth at most, so that bodies that differ by a few digits use the same memory. A page
    takes memory only after it was touched.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._most = kept
        self._lock = threading.Lock()
        # Those that are no longer used, as they come back. The garbage collector may bring one in the middle of
        # anything, so that must not wait for a lock.
        self._returned: deque[mmap.mmap] = deque()
        self._free: OrderedDict[int, list[mmap.mmap]] = OrderedDict()
        self._kept = 0

    def take(self, size: int) -> memoryview:
        """`size` bytes of any content. They come back when the view, and all that was made of it, is gone.

        Raises MemoryError.
        """
        if size < _SMALL:
            return np.empty(size, np.uint8).data
        step = max(_PAGE, 1 << (size.bit_length() - 4))
        try:
            block = self._find(-(-size // step) * step)
        except (OSError, OverflowError):
            raise MemoryError(f"there is no memory for {size} bytes") from None
        # Not a slice of another array: a view of a view refers to the first array only, which is watched here.
        array = np.frombuffer(block, np.uint8, size)
        weakref.finalize(array, self._take_back, block).atexit = False
        return array.data

    def _take_back(self, block: mmap.mmap) -> None:
        self._returned.append(block)
        # Whoever has the lock, which may be this thread, or takes it next, looks at those that came back.
        if self._lock.acquire(blocking=False):
            try:
                self._keep_returned()
            finally:
                self._lock.release()

    def drop(self) -> None:
        with self._lock:
            self._returned.clear()
            self._free.clear()
            self._kept = 0

    def _find(self, size: int) -> mmap.mmap:
        with self._lock:
            self._keep_returned()
            blocks = self._free.get(size)
            if blocks:
                self._kept -= size
                return blocks.pop()
        # Private: what is shared without need counts as shared memory of the server, and is never in huge pages.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _keep_returned(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            size = len(block)
            if size <= self._most:
                self._free.setdefault(size, []).append(block)
                self._free.move_to_end(size)
                self._kept += size
        while self._kept > self._most:
            oldest, blocks = next(iter(self._free.items()))
            if blocks:
                blocks.pop()
                self._kept -= oldest
            else:
                del self._free[oldest]


# Allocates memory for a body, given its size in bytes; returns an array, or None if the memory is exhausted.
Allocate = Callable[[int], Any]
ALIGNMENT = 64
# A client that announces a longer body gets the memory for all of it only after it has sent this much. The first step
# is too small for huge pages, which numpy requests from 4 MiB on.
FIRST_STEP = 1 << 20
# Sending a smaller body to the engine is faster than allocating shared memory for it.
_MIN_SHARED = 32768
# The C library reuses the memory of smaller ones as well. That of larger ones it gives back to the system, or keeps in
# pieces that do not fit: of a gRPC message of 16 MB, clearing fresh pages took a tenth of the server's time.
_MIN_KEPT = 1 << 18
# The bodies of 64 images as JSON and their first steps; the worker releases what is unused when it is idle.
_kept = BufferPool(256 << 20)


def allocate_body(size: int, offset: int, allocate: Allocate | None = None) -> memoryview:
    """`size` uninitialised bytes, of which byte number `offset` lies at a multiple of 64. Raises MemoryError.

    Large bodies are allocated by `allocate` while it has memory.
    """
    raw = allocate(size + ALIGNMENT) if allocate is not None and size >= _MIN_SHARED else None
    if raw is None:
        room = size + ALIGNMENT
        raw = np.frombuffer(_kept.take(room), np.uint8) if size >= _MIN_KEPT else np.empty(room, np.uint8)
    start = -(raw.__array_interface__["data"][0] + offset) % ALIGNMENT
    return raw.data[start : start + size]


def release_buffers() -> None:
    """Return the memory that no body uses to the system. Any thread."""
    _kept.drop()


class RequestBody:
    """A body of `length` bytes that is being received: the first `got` bytes of `memory` are filled."""

    __slots__ = ("_allocate", "_offset", "got", "length", "memory")

    def __init__(self, length: int, first: bytes, offset: int, allocate: Allocate | None) -> None:
        """`first` are the bytes that have already arrived; `offset` and `allocate` as in `allocate_body`.

        Raises MemoryError.
        """
        self.length = length
        self.got = len(first)
        self._offset = offset
        self._allocate = allocate
        if length <= FIRST_STEP:
            self.memory = allocate_body(length, offset, allocate)
        else:
            self.memory = allocate_body(max(FIRST_STEP, self.got), offset)
        self.memory[: self.got] = first

    def room(self) -> memoryview:
        """The memory for the next bytes. Raises MemoryError."""
        if self.got == len(self.memory):
            self._move()
        return self.memory[self.got :]

    def leave_shared(self) -> None:
        """Move the body out of shared memory. Raises MemoryError."""
        if self._allocate is not None:
            self._allocate = None
            if len(self.memory) == self.length:
                self._move()

    def _move(self) -> None:
        memory = allocate_body(self.length, self._offset, self._allocate)
        memory[: self.got] = self.memory[: self.got]
        self.memory = memory


# --- unfinished bodies


# A client that has sent nothing for so long loses its body before others do.
SILENCE_S: Final = 2.0


class Receiving(Protocol):
    """A body, or a message of gRPC, that is being received. It must be hashable."""

    @property
    def received(self) -> int:
        """The bytes that have arrived."""

    @property
    def is_held_up(self) -> bool:
        """True while the server keeps the client from sending."""

    def crowd_out(self) -> None:
        """Its memory is needed: refuse it."""


class Progress:
    """`received` bytes have arrived, the last of them at `since`, in seconds; `seen` at the last look."""

    __slots__ = ("received", "seen", "since")

    def __init__(self) -> None:
        self.received = 0
        self.seen = -1
        self.since = 0.0


R = TypeVar("R", bound=Receiving)


class UnfinishedBodies(Generic[R]):
    """The bodies that are being received. On the hub's thread.

    Together they may hold `limit` bytes besides the largest of them, so that one alone is never refused. When they hold
    more, those whose clients are silent are refused, the longest silent first; if that is not enough, the largest of
    all, so that clients of large bodies do not keep out the others. So many are refused that an eighth of the limit is
    free, because a look at all bodies takes time.
    """

    def __init__(self, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._now = now
        self._bodies: dict[R, Progress] = {}
        self.total = 0
        """The bytes of all of them."""
        # The total at which to look at them again.
        self._crowded = limit

    def __len__(self) -> int:
        return len(self._bodies)

    def grew(self, receiving: R) -> None:
        """Note that a part of a body has arrived. May refuse this or other bodies."""
        progress = self._bodies.get(receiving)
        if progress is None:
            progress = self._bodies[receiving] = Progress()
        received = receiving.received
        self.total += received - progress.received
        progress.received = received
        progress.since = self._now()
        if self.total > self._crowded:
            self._refuse()

    def remove(self, receiving: R) -> None:
        progress = self._bodies.pop(receiving, None)
        if progress is not None:
            self.total -= progress.received
            if self.total <= self._limit:
                self._crowded = self._limit

    def _refuse(self) -> None:
        by_size = sorted(self._bodies, key=lambda each: self._bodies[each].received)
        most = self._bodies[by_size[-1]].received + self._limit
        if self.total > most:
            enough = most - self._limit // 8
            since = self._now() - SILENCE_S
            silent = [each for each in by_size if not each.is_held_up and self._bodies[each].since < since]
            silent.sort(key=lambda each: -self._bodies[each].since)
            for candidates in (silent, by_size):
                while candidates and self.total > enough:
                    receiving = candidates.pop()
                    if receiving in self._bodies:
                        receiving.crowd_out()
                        self.remove(receiving)
        self._crowded = max(self._limit, self.total + self._limit // 64)
