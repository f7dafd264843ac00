"""A few bytes that the processes of a server leave for each other."""

from __future__ import annotations

import mmap

_LENGTH = 8


class SharedNote:
    """At most `size` bytes in memory that is shared with all processes forked later. Empty at first."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, _LENGTH + size)

    def write(self, content: bytes) -> None:
        """Leave `content`, cut to the size; the last one counts."""
        content = content[: len(self._memory) - _LENGTH]
        self._memory[_LENGTH : _LENGTH + len(content)] = content
        self._memory[:_LENGTH] = len(content).to_bytes(_LENGTH, "little")

    def read(self) -> bytes:
        length = int.from_bytes(self._memory[:_LENGTH], "little")
        return self._memory[_LENGTH : _LENGTH + length]
