"""The memory that a front end and the engine share, for tensors too large for a socket.

It is a memfd: it has no name, and ends with the last process that maps it, however that ends. It is sealed, so that
no neighbour can shorten it under our feet: a read behind its end would be a SIGBUS.
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

from core.errors import OutOfMemory
from core.inference.tensors import Array, Buffer
from core.remote.memory.page_allocator import PAGE

LARGEST = 1 << 40
_SIZE_STEP = 2 * PAGE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Bytes = npt.NDArray[np.uint8]

# Twice as fast as __array_interface__, but for writable buffers only.
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


class SharedMemoryBlock:
    """Memory of one front end and the engine, of `size` bytes, an even number of pages so that each half has its own.

    `descriptor` is the memfd, -1 when closed. All methods are for any thread, `close` once nobody begins new ones.
    A page takes memory once it is touched, not before.
    """

    def __init__(self, descriptor: int, mapping: mmap.mmap) -> None:
        """Use `create` or `attach`. Takes the descriptor over."""
        self.descriptor = descriptor
        self.size = len(mapping)
        self._mapping: mmap.mmap | None = mapping
        self._memory: Bytes | None = np.frombuffer(mapping, np.uint8)
        self._address = ctypes.addressof(_first_byte(mapping))
        self._reach = self.size

    @classmethod
    def create(cls, size: int) -> SharedMemoryBlock:
        """New memory of at most `size` bytes, all zero. Raises OutOfMemory, which names the option, and OSError."""
        if not _SIZE_STEP <= size <= LARGEST:
            raise _no_memory(size, f"it must be between {_SIZE_STEP} and {LARGEST}")
        size -= size % _SIZE_STEP
        descriptor = os.memfd_create("trident-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
        """The memory that another process made. Takes the descriptor over, and closes it if it raises.

        Raises ValueError unless it is a memfd that cannot shrink, may be written, and has an even number of pages, at
        least two and at most `maximum` bytes.
        """
        try:
            return cls(descriptor, _mapping_of(descriptor, maximum))
        except BaseException:
            with suppress(OSError):
                os.close(descriptor)
            raise

    def view(self, offset: int, size: int) -> Bytes:
        """These bytes, to read and to write. Raises ValueError outside of the arena, and when it is closed.

        They stay where they are while an array of them is alive, whatever happens to the arena.
        """
        memory = self._memory
        if memory is None or not 0 <= offset <= offset + size <= self.size:
            raise self._outside(offset, size)
        return memory[offset : offset + size]

    def borrow(self, offset: int, size: int, on_end: Callable[[], None]) -> Bytes:
        """As `view`; `on_end` is called when the last array, view or buffer made of it is gone.

        On any thread, and, if a cycle of objects held it, wherever that thread was when the garbage collector came:
        `on_end` must be cheap and may wait for no lock. It is not called when the interpreter ends first.
        """
        mapping = self._mapping
        if mapping is None or not 0 <= offset <= offset + size <= self.size:
            raise self._outside(offset, size)
        # Not a slice of self._memory: numpy lets a view of a view hold the first array only, and the one in between,
        # which is watched here, would be gone too early.
        array = np.frombuffer(mapping, np.uint8, size, offset)
        weakref.finalize(array, on_end).atexit = False
        return array

    def offset_of(self, buffer: Buffer | Array) -> int | None:
        """Where in the arena the memory of a contiguous buffer begins.

        None if it is outside, empty or not contiguous, and when the arena is closed.
        """
        try:
            offset = ctypes.addressof(_first_byte(buffer)) - self._address
        except (TypeError, ValueError):  # bytes, read-only, empty, not contiguous
            offset = _address_of(buffer) - self._address
        return offset if 0 <= offset < self._reach else None

    def close(self) -> None:
        """Give the descriptor and the memory back, of which what has views stays until they are gone."""
        # Another mapping may come to lie at this address.
        self._reach = 0
        self._memory = self._mapping = None
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _outside(self, offset: int, size: int) -> ValueError:
        what = "is closed" if self._mapping is None else f"has {self.size}"
        return ValueError(f"{size} bytes at {offset} of an arena that {what}")


def _mapping_of(descriptor: int, maximum: int) -> mmap.mmap:
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        # After the seals: what cannot shrink may be trusted to have this size.
        status = os.fstat(descriptor)
    except OSError as error:
        raise ValueError(f"memory to share must be a memfd: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or not seals & fcntl.F_SEAL_SHRINK:
        raise ValueError("memory to share must be sealed against shrinking")
    size = status.st_size
    if not 0 < size <= maximum or size % _SIZE_STEP:
        raise ValueError(f"memory to share of {size} bytes: an even number of pages, {maximum} bytes at most")
    try:
        return mmap.mmap(descriptor, size)
    except OSError as error:
        raise ValueError(f"memory to share of {size} bytes cannot be mapped: {error.strerror}") from error


def _no_memory(size: int, reason: str) -> OutOfMemory:
    return OutOfMemory(
        f"cannot share {size} bytes of memory with the engine: {reason} (set by --http-worker-memory-bytes)"
    )


def _address_of(buffer: Buffer | Array) -> int:
    """The slow way, which takes read-only buffers too. -1 for what has none."""
    if isinstance(buffer, bytes):
        return -1
    array = np.asarray(buffer)
    if not array.size or not array.flags.c_contiguous:
        return -1
    address: int = array.__array_interface__["data"][0]
    return address
