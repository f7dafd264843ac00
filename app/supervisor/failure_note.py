"""The reason for which a server cannot serve, on its way from the process that found it to the main process."""

from __future__ import annotations

from core.interprocess.shared_note import SharedNote

_SIZE = (1 << 16) - 1


class FailureNote:
    """One text in memory that is shared with all processes forked later. The main process prints it as its last line,
    after the lines with which the others end."""

    def __init__(self) -> None:
        self._note = SharedNote(_SIZE)

    def write(self, reason: str) -> None:
        """Leave `reason`, shortened to 64 KiB; the last one counts."""
        self._note.write(reason.encode("utf-8", "replace"))

    def read(self) -> str:
        """The text, "" if none was written."""
        return self._note.read().decode("utf-8", "ignore")
