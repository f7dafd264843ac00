"""The reason for which a server cannot serve, on its way from the process that found it to the main process."""

from __future__ import annotations

import mmap

_SIZE = 1 << 16


class FailureNote:
    """One text in memory that is shared with all processes forked later. The main process prints it as its last line,
    after the lines with which the others end."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)

    def write(self, reason: str) -> None:
        """Leave `reason`, shortened to 64 KiB; the last one counts."""
        encoded = reason.encode("utf-8", "replace")[: _SIZE - 1]
        self._memory[: len(encoded) + 1] = encoded + b"\0"

    def read(self) -> str:
        """The text, "" if none was written."""
        self._memory.seek(0)
        return self._memory.read().partition(b"\0")[0].decode("utf-8", "ignore")
