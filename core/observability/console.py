"""Lines for the person or program that started a process, besides its log."""

from __future__ import annotations

import sys
from typing import TextIO

_stderr: TextIO | None = None


def stderr() -> TextIO:
    """The stderr that this program was started with, though descriptor 2 may be another file by now."""
    return _stderr or sys.stderr


def set_stderr(stream: TextIO) -> None:
    """Remember `stream` as the stderr that this program was started with."""
    global _stderr
    _stderr = stream


def print_line(text: str, stream: TextIO) -> None:
    """Write `text` and its line end in one write, and flush. Any thread. Raises OSError.

    `print` writes the line end separately. With PYTHONUNBUFFERED, which images commonly set, another process or thread
    writes to the same stream in between.
    """
    stream.write(f"{text}\n")
    stream.flush()
