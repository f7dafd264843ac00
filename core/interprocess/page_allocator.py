"""An allocator of whole pages in a block of memory."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

PAGE = 4096


class PageAllocator:
    """First-fit allocator over the whole pages in the bytes [start, end). Any thread.

    It prefers low offsets, so that few pages are ever touched, and merges free neighbours. `free` never waits for a
    lock: the garbage collector may call it at any point of any thread, even in the middle of `allocate`.
    Raises ValueError unless 0 <= start <= end.
    """

    def __init__(self, start: int, end: int) -> None:
        if not 0 <= start <= end:
            raise ValueError(f"no pages can lie in the bytes from {start} to {end}")
        first, last = _pages(start), end // PAGE * PAGE
        self.capacity = max(last - first, 0)
        self.used = 0
        """Bytes in use, each allocation rounded up to whole pages."""
        # The holes by offset: where each begins, and its size in bytes.
        self._starts = [first] if self.capacity else []
        self._rooms = [self.capacity] if self.capacity else []
        self._in_use: dict[int, int] = {}
        # Where the pages end that were in use since the last `reclaim`.
        self._reach = first
        self._freed: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def allocate(self, size: int) -> int | None:
        """The offset of `size` bytes, at the start of a page; None if no hole is large enough.

        Zero bytes take a page too, so that each allocation has its own offset. Raises ValueError for a negative size.
        """
        if size < 0:
            raise ValueError(f"cannot allocate {size} bytes")
        wanted = _pages(size) or PAGE
        with self._lock:
            self._settle()
            offset = self._take(wanted)
        if self._freed:
            self._try_to_settle()
        return offset

    def free(self, offset: int) -> None:
        """Free the allocation at `offset`. Raises ValueError if there is none."""
        size = self._in_use.pop(offset, None)
        if size is None:
            raise ValueError(f"nothing is allocated at {offset}")
        self._freed.append((offset, size))
        self._try_to_settle()

    def reclaim(self, release: Callable[[int, int], None]) -> None:
        """Call `release(offset, size)` for all pages that are free and were in use. Nothing is allocated meanwhile."""
        with self._lock:
            self._settle()
            for start, room in zip(self._starts, self._rooms, strict=True):
                size = min(start + room, self._reach) - start
                if size > 0:
                    release(start, size)
            if self._starts and self._starts[-1] + self._rooms[-1] >= self._reach:
                self._reach = min(self._reach, self._starts[-1])
        self._try_to_settle()

    def holds(self, offset: int) -> bool:
        """Whether an allocation begins at this offset."""
        return offset in self._in_use

    def _take(self, wanted: int) -> int | None:
        for index, room in enumerate(self._rooms):
            if room >= wanted:
                offset = self._starts[index]
                if room == wanted:
                    del self._starts[index], self._rooms[index]
                else:
                    self._starts[index] += wanted
                    self._rooms[index] -= wanted
                self._in_use[offset] = wanted
                self._reach = max(self._reach, offset + wanted)
                self.used += wanted
                return offset
        return None

    def _try_to_settle(self) -> None:
        # The holder of the lock calls this after it releases it, so nothing that is freed meanwhile is forgotten.
        while self._freed and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        """Turn what was freed into holes. Under the lock."""
        while self._freed:
            offset, size = self._freed.popleft()
            self.used -= size
            starts, rooms = self._starts, self._rooms
            index = bisect_left(starts, offset)
            if index < len(starts) and starts[index] == offset + size:
                size += rooms[index]
                del starts[index], rooms[index]
            if index and starts[index - 1] + rooms[index - 1] == offset:
                rooms[index - 1] += size
            else:
                starts.insert(index, offset)
                rooms.insert(index, size)


def _pages(size: int) -> int:
    """`size` bytes rounded up to whole pages."""
    return (size + PAGE - 1) // PAGE * PAGE
