"""Memory into which request bodies are received, aligned for the tensors in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trident.core.buffer_pool import BufferPool

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
