"""The memory that a front end and the engine share for large tensors.

It is a memfd: it has no name, and the kernel frees it with the last process that maps it. It is sealed so that the
other process cannot shrink it: reading past its end would be a SIGBUS.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from trident.core.errors import OutOfMemory
from trident.core.inference.tensors import Array, Buffer
from trident.core.interprocess.page_allocator import PAGE

LARGEST = 1 << 40
_SIZE_STEP = 2 * PAGE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Bytes = npt.NDArray[np.uint8]

# Twice as fast as __array_interface__, but for writable buffers only.
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


class SharedMemoryBlock:
    """Memory of `size` bytes, an even number of pages, so that it can be halved between requests and responses.

    `descriptor` is the memfd, -1 after `close`. Any thread may call any method, but nothing else at the same time as
    `close`. A page takes memory only after it was first touched, until it is released.
    """

    def __init__(self, descriptor: int, mapping: mmap.mmap) -> None:
        """Use `create` or `attach`. Takes ownership of the descriptor."""
        self.descriptor = descriptor
        self.size = len(mapping)
        self._mapping: mmap.mmap | None = mapping
        self._memory: Bytes | None = np.frombuffer(mapping, np.uint8)
        self._address = ctypes.addressof(_first_byte(mapping))
        self._reach = self.size

    @classmethod
    def create(cls, size: int) -> SharedMemoryBlock:
        """New memory of at most `size` bytes, all zero. Raises OutOfMemory that names the option, or OSError."""
        if not _SIZE_STEP <= size <= LARGEST:
            raise _no_memory(size, f"it must be between {_SIZE_STEP} and {LARGEST}")
        size -= size % _SIZE_STEP
        descriptor = os.memfd_create("trident-shared-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            try:
                os.ftruncate(descriptor, size)
                mapping = mmap.mmap(descriptor, size)
            except OSError as error:
                raise _no_memory(size, os.strerror(error.errno or 0)) from error
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, mapping)

    @classmethod
    def attach(cls, descriptor: int, maximum: int = LARGEST) -> SharedMemoryBlock:
        """Memory that another process made. Takes ownership of the descriptor, and closes it if it raises.

        Raises ValueError unless it is a writable memfd that cannot shrink, of an even number of pages, at least two,
        and at most `maximum` bytes.
        """
        try:
            return cls(descriptor, _mapping_of(descriptor, maximum))
        except BaseException:
            with suppress(OSError):
                os.close(descriptor)
            raise

    def view(self, offset: int, size: int) -> Bytes:
        """These bytes, writable. Raises ValueError outside the block and after `close`.

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

    def release(self, offset: int, size: int) -> None:
        """Give whole pages back to the system, in all processes that map them. They are zero when they are used again.

        200 MB take about 20 milliseconds. Does nothing after `close`, and where the system cannot.
        """
        mapping = self._mapping
        if mapping is not None:
            with suppress(OSError):
                mapping.madvise(mmap.MADV_REMOVE, offset, size)

    def offset_of(self, buffer: Buffer | Array) -> int | None:
        """The offset at which the memory of a contiguous buffer begins.

        None for a buffer outside, an empty or non-contiguous one, and after `close`.
        """
        try:
            offset = ctypes.addressof(_first_byte(buffer)) - self._address
        except (TypeError, ValueError):  # bytes, read-only, empty, not contiguous
            offset = _address_of(buffer) - self._address
        return offset if 0 <= offset < self._reach else None

    def close(self) -> None:
        """Close the descriptor and unmap the memory as soon as no view of it is left."""
        # Another mapping may get this address later.
        self._reach = 0
        self._memory = self._mapping = None
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _outside(self, offset: int, size: int) -> ValueError:
        state = "is closed" if self._mapping is None else f"has {self.size} bytes"
        return ValueError(f"{size} bytes at {offset} are outside the shared memory, which {state}")


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


def _no_memory(size: int, reason: str) -> OutOfMemory:
    return OutOfMemory(
        f"cannot share {size} bytes of memory with the engine: {reason} (set by --http-worker-memory-bytes)"
    )


def _address_of(buffer: Buffer | Array) -> int:
    """The address of any buffer, read-only ones too, but slower. -1 if it has none."""
    if isinstance(buffer, bytes):
        return -1
    array = np.asarray(buffer)
    if not array.size or not array.flags.c_contiguous:
        return -1
    address: int = array.__array_interface__["data"][0]
    return address
