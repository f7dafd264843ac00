"""Lines for the person or program that started a process, besides its log."""

from __future__ import annotations

from typing import TextIO


def print_line(text: str, stream: TextIO) -> None:
    """Write `text` and its line end in one write, and flush. Any thread. Raises OSError.

    `print` writes the line end separately. With PYTHONUNBUFFERED, which images commonly set, another process or thread
    writes to the same stream in between.
    """
    stream.write(f"{text}\n")
    stream.flush()
