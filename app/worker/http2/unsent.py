"""What waits to be sent on one stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from core.grpc.transport import HeaderFields
from core.inference.tensors import Buffer


def copy_of(part: memoryview) -> memoryview:
    """The part itself if it is a copy already."""
    return part if isinstance(part.obj, bytes) else memoryview(bytes(part))


class Unsent:
    """DATA that waits for a window or for the socket, and the trailers that follow it.

    `size` is in bytes, `since` the time in seconds at which the client last took some.
    """

    __slots__ = ("_parts", "since", "size", "trailers")

    def __init__(self, now: float) -> None:
        self._parts: deque[memoryview] = deque()
        self.size = 0
        self.trailers: HeaderFields | None = None
        self.since = now

    def add(self, parts: Sequence[Buffer], size: int) -> None:
        self._parts += [memoryview(part) for part in parts]
        self.size += size

    def copy(self) -> None:
        """Keep copies, and let go of the memory that the parts lie in, which others may need. Raises MemoryError."""
        self._parts = deque(copy_of(part) for part in self._parts)

    def cut(self, size: int) -> list[Buffer]:
        """Take off the next `size` bytes."""
        self.size -= size
        cut: list[Buffer] = []
        while size:
            part = self._parts.popleft()
            if len(part) > size:
                self._parts.appendleft(part[size:])
                part = part[:size]
            size -= len(part)
            cut.append(part)
        return cut
