"""The frames on the socket between a front end and the engine: a fixed header, then content of the size that it says.

    size     u32   bytes after the header, a multiple of 16
    type     u8    what the frame is
    flags    u8    by type
    placed   u16   tensors that lie in the arena
    number   u64   of the request or the call; of RELEASE the place in the arena

    front end -> engine              engine -> front end
    HELLO    version, arena          STATE     live, ready, phase
    REQUEST  an inference request    RESPONSE  to a request; flags: final, failed
    CANCEL   a request               RESULT    of a call
    CALL     another method
    RELEASE  memory of a response

Frames start on a multiple of 16, and so do the tensors in them, so that the first one, mostly the only one, is aligned
as numpy and ONNX Runtime like it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from core.inference.tensors import Buffer

VERSION = 2
HEADER = struct.Struct("<IBBHQ")
ALIGNMENT = 16
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
# Larger than what any option lets a request have; what is not there yet takes no memory.
LARGEST = 0xFFFF_FFF0

HELLO, REQUEST, CANCEL, CALL, RELEASE = range(1, 6)
STATE, RESPONSE, RESULT = range(16, 19)
TO_ENGINE = frozenset((HELLO, REQUEST, CANCEL, CALL, RELEASE))
TO_FRONT_END = frozenset((STATE, RESPONSE, RESULT))

FINAL = 1
FAILED = 2

# Type, flags, tensors in the arena, number, content: a view of what was received, which it keeps in memory. A plain
# tuple: one of names costs a twentieth of all that is done for a small request.
Frame = tuple[int, int, int, int, memoryview]


class BadFrame(ValueError):
    """What came is none of the protocol's frames: the connection cannot go on."""


def frame(kind: int, number: int, content: Iterable[Buffer] = ()) -> bytes:
    """A whole frame, padded with blanks, which JSON does not mind."""
    body = b"".join(content)
    padding = b" " * (-len(body) % ALIGNMENT)
    return b"".join((HEADER.pack(len(body) + len(padding), kind, 0, 0, number), body, padding))


class FrameReader:
    """Cuts a stream into frames. `kinds` are the types that may come."""

    def __init__(self, kinds: frozenset[int]) -> None:
        self._kinds = kinds
        self._parts: list[bytes] = []
        self._have = 0
        self._wanted = HEADER.size

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that are complete with `chunk`. Raises BadFrame."""
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
            size, kind, flags, placed, number = unpack(chunk, at)
            if kind not in kinds or size & 15 or size > LARGEST:
                raise BadFrame(f"a frame of type {kind} and {size} bytes")
            start = at + 16
            if end - start < size:
                self._wanted = HEADER.size + size
                break
            at = start + size
            frames.append((kind, flags, placed, number, view[start:at]))
        if at < end:
            self._parts = [chunk[at:] if at else chunk]
            self._have = end - at
        return frames
