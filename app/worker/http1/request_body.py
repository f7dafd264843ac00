"""Request bodies: one buffer per body, with the tensors in it on a cache line."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from app.sites.site import Allocate
from core.inference.tensors import Buffer

ALIGNMENT = 64
# A client that lies about the length of its body gets address space for it only after it has sent this much. Small
# enough that no huge page is touched: numpy asks for those from 4 MiB on.
FIRST_STEP = 1 << 20


# Smaller ones are sent to the engine faster than put where it can see them.
_SHARED_FROM = 32768


def allocate_body(size: int, offset: int, allocate: Allocate | None = None) -> memoryview:
    """`size` bytes, uninitialised, whose byte number `offset` lies on a multiple of 64. Raises MemoryError.

    Large ones are `allocate`'s, as long as it has any.
    """
    raw = allocate(size + ALIGNMENT) if allocate is not None and size >= _SHARED_FROM else None
    if raw is None:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -(raw.__array_interface__["data"][0] + offset) % ALIGNMENT
    return raw.data[start : start + size]


class IncomingBody:
    """A body of `length` bytes that is being received: `got` of them lie at the start of `memory`."""

    __slots__ = ("_allocate", "_offset", "got", "length", "memory")

    def __init__(self, length: int, first: bytes, offset: int, allocate: Allocate | None) -> None:
        """`first` is what has come already; for the others see `allocate_body`. Raises MemoryError."""
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
        """Where the next bytes go. Raises MemoryError."""
        if self.got == len(self.memory):
            self._move()
        return self.memory[self.got :]

    def leave_shared(self) -> None:
        """Go on in memory that is nobody else's. Raises MemoryError."""
        if self._allocate is not None:
            self._allocate = None
            if len(self.memory) == self.length:
                self._move()

    def _move(self) -> None:
        memory = allocate_body(self.length, self._offset, self._allocate)
        memory[: self.got] = self.memory[: self.got]
        self.memory = memory


class BodyInput(io.RawIOBase):
    """`wsgi.input` over a buffer, which is not copied until it is read."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        part = self._body[self._at : self._at + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def readall(self) -> bytes:
        rest = bytes(self._body[self._at :])
        self._at = len(self._body)
        return rest


def size_of(part: Buffer) -> int:
    """The bytes in one part of a response."""
    return len(part) if isinstance(part, bytes) else memoryview(part).nbytes


def drop_sent(parts: list[Buffer], sent: int) -> None:
    """Take the first `sent` bytes off the parts of a response, which has more."""
    first = 0
    while sent >= size_of(parts[first]):
        sent -= size_of(parts[first])
        first += 1
    del parts[:first]
    parts[0] = memoryview(parts[0]).cast("B")[sent:]
