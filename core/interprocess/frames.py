"""The frames on a socket between two processes of a server: a fixed header, then the content.

    size     u32   bytes of the content, a multiple of 16
    type     u8    of the frame
    flags    u8    of that type of frame
    shared   u16   number of tensors in shared memory
    number   u64   what the frame is about, such as a request

Frames begin at a multiple of 16 bytes, and so do the tensors in them: the first tensor, usually the only one, has the
alignment that numpy and ONNX Runtime want.
The process of a Python model imports this module into the interpreter of the model: it needs Python 3.9 and nothing of
the project.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.inference.tensors import Buffer

HEADER = struct.Struct("<IBBHQ")
ALIGNMENT = 16
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
# More than any option allows for a request. Only content that has arrived takes memory.
LARGEST = 0xFFFF_FFF0

# Type, flags, tensors in shared memory, number, and content: a view of the received bytes, which it keeps in memory.
# A plain tuple, because a named one costs a twentieth of the time of a small request.
Frame = tuple[int, int, int, int, memoryview]


class BadFrame(ValueError):
    """The other end sent something that the protocol does not have: the connection must end."""


def frame(kind: int, number: int, content: Iterable[Buffer] = (), *, flags: int = 0) -> bytes:
    """A whole frame, padded with blanks, which JSON parsers ignore."""
    body = b"".join(content)
    padding = b" " * (-len(body) % ALIGNMENT)
    return b"".join((HEADER.pack(len(body) + len(padding), kind, flags, 0, number), body, padding))


class FrameReader:
    """Cuts a stream into frames. `kinds` are the types that the other end may send."""

    def __init__(self, kinds: frozenset[int]) -> None:
        self._kinds = kinds
        self._parts: list[bytes] = []
        self._have = 0
        self._wanted = HEADER.size

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes. Raises BadFrame."""
        if self._parts:
            self._parts.append(chunk)
            self._have += len(chunk)
            if self._have < self._wanted:
                return []
            chunk = b"".join(self._parts)
            self._parts = []
        frames: list[Frame] = []
        view, at, end = memoryview(chunk), 0, len(chunk)
        self._wanted = HEADER.size
        unpack, kinds = HEADER.unpack_from, self._kinds
        while end - at >= 16:
            size, kind, flags, shared, number = unpack(chunk, at)
            if kind not in kinds or size & 15 or size > LARGEST:
                raise BadFrame(f"a frame of type {kind} and {size} bytes")
            start = at + 16
            if end - start < size:
                self._wanted = HEADER.size + size
                break
            at = start + size
            frames.append((kind, flags, shared, number, view[start:at]))
        if at < end:
            self._parts = [chunk[at:] if at else chunk]
            self._have = end - at
        return frames
