"""Request bodies: one buffer per body, with the tensors in it on a cache line."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from app.site import Allocate
from core.tensors import Buffer

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
