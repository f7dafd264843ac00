"""Lines for whoever started a process, beside those of its log."""

from __future__ import annotations

from typing import TextIO


def print_line(text: str, stream: TextIO) -> None:
    """Write `text` and the end of its line at once, and flush. Any thread. Raises OSError.

    `print` writes the end by itself, so that the other processes and threads with the same stream may write before it;
    with PYTHONUNBUFFERED, which images commonly set, they do.
    """
    stream.write(f"{text}\n")
    stream.flush()
