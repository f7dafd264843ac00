"""The memory that a stub process shares with the server: the server fills the first half, the stub the second."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from .wire import OFFSET, BadFrame

if TYPE_CHECKING:
    from core.interprocess.page_allocator import PageAllocator
else:
    from .page_allocator import PageAllocator


class SharedMemory:
    """Any thread."""

    def __init__(self, descriptor: int) -> None:
        """Maps the memory, and closes the descriptor. Raises OSError."""
        size = os.fstat(descriptor).st_size
        self._mapping = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self._memory = memoryview(self._mapping)
        self._pages = PageAllocator(size // 2, size)
        self._released: deque[int] = deque()

    def share(self, content: Any) -> int | None:
        """Copy the bytes of a tensor into the stub's half. Returns their offset; None if there is no room."""
        size = len(content)
        offset = self._pages.allocate(size)
        if offset is not None:
            self._memory[offset : offset + size] = content
        return offset

    def free(self, offset: int) -> None:
        """The server has let go of what `share` put at `offset`. Raises BadFrame."""
        try:
            self._pages.free(offset)
        except ValueError as error:
            raise BadFrame(str(error)) from None

    def borrow(self, offset: int, size: int) -> memoryview:
        """Bytes of the server's half, which hears in `take_released` of the end of the last view. Raises BadFrame."""
        if not 0 <= offset <= offset + size <= len(self._memory):
            raise BadFrame(f"{size} bytes at {offset} are outside the shared memory")
        array = np.frombuffer(self._mapping, np.uint8, size, offset)
        # The garbage collector calls it in the middle of anything: it only notes the offset.
        weakref.finalize(array, self._released.append, offset).atexit = False
        return array.data

    def take_released(self) -> bytes:
        """The offsets that were let go of since the last call, each as 8 bytes."""
        released = self._released
        if not released:
            return b""
        return b"".join([OFFSET.pack(released.popleft()) for _ in range(len(released))])
