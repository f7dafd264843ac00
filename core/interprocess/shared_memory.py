"""The memory that two processes of a server share for large tensors.

It is a memfd: it has no name, and the kernel frees it with the last process that maps it. It is sealed against
shrinking by the other process: reading past its end would be a SIGBUS.

Front ends share memory with the engine, and the engine with the process of a Python model. That process loads this
module into the model's interpreter: it needs Python 3.9, numpy and the module of the frames.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .frames import BadFrame, release_frame, released_offsets

if TYPE_CHECKING:
    from trident.core.inference.tensors import Array, Buffer

PAGE = 4096
LARGEST = 1 << 40
_SIZE_STEP = 2 * PAGE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# Takes half the time of __array_interface__, but accepts only writable buffers.
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


class SharedMemory:
    """Memory that two processes share: one puts its tensors into the first half, the other one into the second half.

    `descriptor` is the memfd, -1 after `close`. Any thread may call any method, but nothing else at the same time as
    `close`. A page takes memory only after it was first touched, until `reclaim` releases it.
    """

    def __init__(self, descriptor: int, mapping: mmap.mmap, is_first: bool) -> None:
        """Use `create` or `attach`. Takes ownership of the descriptor."""
        self.descriptor = descriptor
        self.size = len(mapping)
        """In bytes, an even number of pages."""
        half = self.size // 2
        self.pages = PageAllocator(0, half) if is_first else PageAllocator(half, self.size)
        """The pages of this process's half."""
        self.on_unused: Callable[[], None] = _nothing
        """Called when there is something to release; it must be as cheap as `on_end` of `borrow`, and not wait."""
        self._unused: deque[int] = deque()
        self._mapping: mmap.mmap | None = mapping
        self._memory: Bytes | None = np.frombuffer(mapping, np.uint8)
        self._address = ctypes.addressof(_first_byte(mapping))
        self._reach = self.size

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """Make memory of at most `size` bytes, all zero; the first half is this process's. Raises MemoryError."""
        if not _SIZE_STEP <= size <= LARGEST:
            raise MemoryError(f"it must be between {_SIZE_STEP} and {LARGEST}")
        size -= size % _SIZE_STEP
        descriptor = os.memfd_create("trident-shared-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            try:
                os.ftruncate(descriptor, size)
                mapping = mmap.mmap(descriptor, size)
            except OSError as error:
                raise MemoryError(os.strerror(error.errno or 0)) from error
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, mapping, True)

    @classmethod
    def attach(cls, descriptor: int, maximum: int = LARGEST) -> SharedMemory:
        """Map the memory that another process made. Takes ownership of the descriptor, and closes it if it raises.

        Raises ValueError unless it is a writable memfd that cannot shrink, of an even number of pages, at least two,
        and at most `maximum` bytes.
        """
        try:
            return cls(descriptor, _mapping_of(descriptor, maximum), False)
        except BaseException:
            with suppress(OSError):
                os.close(descriptor)
            raise

    # --- this process's half

    def share(self, content: Buffer) -> int | None:
        """Copy the bytes of a tensor for the other process, until it releases them.

        Returns their offset, or None if the half is full. Raises ValueError after `close`.
        """
        size = len(content)
        offset = self.pages.allocate(size)
        if offset is not None:
            self.view(offset, size)[:] = np.frombuffer(content, np.uint8)
        return offset

    def unshare(self, offset: int) -> None:
        """Free what `share` put there, if its offset was not sent."""
        self.pages.free(offset)

    def allocate(self, size: int) -> Bytes | None:
        """Return memory that is freed with the last view of the array. None if none is free, and after `close`."""
        offset = self.pages.allocate(size)
        if offset is None:
            return None
        try:
            return self.borrow(offset, size, partial(self.pages.free, offset))
        except ValueError:  # closed meanwhile
            return None

    def released(self, content: memoryview, count: int) -> None:
        """Free what the other process gives back in a release frame. Raises BadFrame."""
        for offset in released_offsets(content, count):
            try:
                self.pages.free(offset)
            except ValueError as error:
                raise BadFrame(str(error)) from None

    def reclaim(self) -> None:
        """Return the free pages to the system; 200 MB take about 20 ms. Does nothing after `close`.

        They are zero when they are used again.
        """
        mapping = self._mapping
        if mapping is not None:
            self.pages.reclaim(partial(_release, mapping))

    # --- the other process's half

    def received(self, offset: int, size: int) -> memoryview:
        """Return what the other process shares there, and release it when its last view is gone. Raises BadFrame."""
        try:
            return self.borrow(offset, size, partial(self._is_unused, offset)).data
        except ValueError as error:
            raise BadFrame(str(error)) from None

    def release(self, kind: int) -> bytes:
        """Return a frame of this type that releases the memory no longer in use; b"" if there is none."""
        if not self._unused:
            return b""
        offsets: list[int] = []
        # Several threads may be here at once: each takes a part.
        with suppress(IndexError):
            while True:
                offsets.append(self._unused.popleft())
        return release_frame(kind, offsets) if offsets else b""

    def _is_unused(self, offset: int) -> None:
        if self._mapping is not None:
            self._unused.append(offset)
            self.on_unused()

    # --- all of it

    def view(self, offset: int, size: int) -> Bytes:
        """Return these bytes, writable. Raises ValueError outside the memory and after `close`.

        The memory stays mapped while an array of it is alive, even after `close`.
        """
        memory = self._memory
        if memory is None or not 0 <= offset <= offset + size <= self.size:
            raise self._outside(offset, size)
        return memory[offset : offset + size]

    def borrow(self, offset: int, size: int, on_end: Callable[[], None]) -> Bytes:
        """As `view`; `on_end` is called after the last array, view or buffer of these bytes is gone.

        It is called on any thread, possibly by the garbage collector in the middle of anything: it must be cheap and
        must not wait for a lock. It is not called if the interpreter ends first.
        """
        mapping = self._mapping
        if mapping is None or not 0 <= offset <= offset + size <= self.size:
            raise self._outside(offset, size)
        # Not a slice of self._memory: a numpy view of a view refers to the first array only, so the slice in between,
        # which is watched here, would be gone too early.
        array = np.frombuffer(mapping, np.uint8, size, offset)
        weakref.finalize(array, on_end).atexit = False
        return array

    def offset_of(self, buffer: Buffer | Array) -> int | None:
        """Return the offset at which the memory of a contiguous buffer begins.

        None for a buffer outside, an empty or non-contiguous one, and after `close`.
        """
        try:
            offset = ctypes.addressof(_first_byte(buffer)) - self._address
        except (TypeError, ValueError):  # bytes, read-only, empty, not contiguous
            offset = _address_of(buffer) - self._address
        return offset if 0 <= offset < self._reach else None

    def close(self) -> None:
        """Close the descriptor and unmap the memory once no view of it exists."""
        # Another mapping may get this address later.
        self._reach = 0
        self._memory = self._mapping = None
        self.on_unused = _nothing
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _outside(self, offset: int, size: int) -> ValueError:
        state = "is closed" if self._mapping is None else f"has {self.size} bytes"
        return ValueError(f"{size} bytes at {offset} are outside the shared memory, which {state}")


def _nothing() -> None: ...


def _release(mapping: mmap.mmap, offset: int, size: int) -> None:
    with suppress(OSError):  # a system that cannot
        mapping.madvise(mmap.MADV_REMOVE, offset, size)


def _mapping_of(descriptor: int, maximum: int) -> mmap.mmap:
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        # Read after the seals: only a file that cannot shrink keeps this size.
        status = os.fstat(descriptor)
    except OSError as error:
        raise ValueError(f"shared memory must be a memfd: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or not seals & fcntl.F_SEAL_SHRINK:
        raise ValueError("shared memory must be sealed against shrinking")
    size = status.st_size
    if not 0 < size <= maximum or size % _SIZE_STEP:
        raise ValueError(f"shared memory of {size} bytes: wanted is an even number of pages, at most {maximum} bytes")
    try:
        return mmap.mmap(descriptor, size)
    except OSError as error:
        raise ValueError(f"shared memory of {size} bytes cannot be mapped: {error.strerror}") from error


def _address_of(buffer: Buffer | Array) -> int:
    """Return the address of any buffer, read-only ones too, but slower. -1 if it has none."""
    if isinstance(buffer, bytes):
        return -1
    array = np.asarray(buffer)
    if not array.size or not array.flags.c_contiguous:
        return -1
    address: int = array.__array_interface__["data"][0]
    return address


class PageAllocator:
    """First-fit allocator over the whole pages in the bytes [start, end). Any thread.

    It prefers low offsets, so that few pages are ever touched, and merges free neighbours. `free` never waits for a
    lock: the garbage collector may call it at any point of any thread, even in the middle of `allocate`.
    """

    def __init__(self, start: int, end: int) -> None:
        first, last = _pages(start), end // PAGE * PAGE
        self.capacity = max(last - first, 0)
        self.used = 0
        """Bytes in use, each allocation rounded up to whole pages."""
        # The holes by offset: where each begins, and its size in bytes.
        self._starts = [first] if self.capacity else []
        self._hole_sizes = [self.capacity] if self.capacity else []
        self._in_use: dict[int, int] = {}
        # The end of the pages that were in use since the last `reclaim`.
        self._reach = first
        self._freed: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def allocate(self, size: int) -> int | None:
        """Allocate `size` bytes and return their offset, the start of a page; None if no hole is large enough.

        Zero bytes take a page too, so that each allocation has its own offset.
        """
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
            for start, hole in zip(self._starts, self._hole_sizes, strict=True):
                size = min(start + hole, self._reach) - start
                if size > 0:
                    release(start, size)
            if self._starts and self._starts[-1] + self._hole_sizes[-1] >= self._reach:
                self._reach = min(self._reach, self._starts[-1])
        self._try_to_settle()

    def holds(self, offset: int) -> bool:
        """Return whether an allocation begins at this offset."""
        return offset in self._in_use

    def _take(self, wanted: int) -> int | None:
        for index, hole in enumerate(self._hole_sizes):
            if hole >= wanted:
                offset = self._starts[index]
                if hole == wanted:
                    del self._starts[index], self._hole_sizes[index]
                else:
                    self._starts[index] += wanted
                    self._hole_sizes[index] -= wanted
                self._in_use[offset] = wanted
                self._reach = max(self._reach, offset + wanted)
                self.used += wanted
                return offset
        return None

    def _try_to_settle(self) -> None:
        # Called by each thread after it has released the lock, so that whatever was freed meanwhile is settled.
        while self._freed and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        """Add the freed ranges to the holes. The caller has the lock."""
        while self._freed:
            offset, size = self._freed.popleft()
            self.used -= size
            starts, sizes = self._starts, self._hole_sizes
            index = bisect_left(starts, offset)
            if index < len(starts) and starts[index] == offset + size:
                size += sizes[index]
                del starts[index], sizes[index]
            if index and starts[index - 1] + sizes[index - 1] == offset:
                sizes[index - 1] += size
            else:
                starts.insert(index, offset)
                sizes.insert(index, size)


def _pages(size: int) -> int:
    """Round `size` bytes up to whole pages."""
    return (size + PAGE - 1) // PAGE * PAGE
