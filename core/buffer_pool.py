"""A pool of large buffers for request bodies and inputs.

Fresh memory has to be cleared by the kernel, page by page: that takes longer than the copy into it (16 MB: 3 ms, and
40 ms of CPU on a busy machine where the kernel also looks for huge pages, instead of 2).
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import OrderedDict, deque

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
        weakref.finalize(array, self._returned.append, block).atexit = False
        return array.data

    def drop(self) -> None:
        """Free what is not used now."""
        with self._lock:
            self._returned.clear()
            self._free.clear()
            self._kept = 0

    def _find(self, size: int) -> mmap.mmap:
        with self._lock:
            while self._returned:
                self._keep(self._returned.popleft())
            blocks = self._free.get(size)
            if blocks:
                self._kept -= size
                return blocks.pop()
        # Private: what is shared without need counts as shared memory of the server, and is never in huge pages.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _keep(self, block: mmap.mmap) -> None:
        size = len(block)
        if size > self._most:
            return
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
