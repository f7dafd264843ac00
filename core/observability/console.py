"""Lines for the person or program that started a process, besides its log."""

from __future__ import annotations

import os
import select
import sys
from typing import TextIO

_WIDTH = 80
_stdout: TextIO | None = None
_stderr: TextIO | None = None


def stdout() -> TextIO:
    """The stdout that this program was started with, though descriptor 1 may be another file by now."""
    return _stdout or sys.stdout


def stderr() -> TextIO:
    """The stderr that this program was started with, though descriptor 2 may be another file by now."""
    return _stderr or sys.stderr


def set_streams(out: TextIO, err: TextIO) -> None:
    """Remember the stdout and stderr that this program was started with."""
    global _stdout, _stderr
    _stdout, _stderr = out, err


def width() -> int:
    """The columns of the terminal that shows stdout; 80 if it is none."""
    try:
        return os.get_terminal_size(stdout().fileno()).columns or _WIDTH
    except (OSError, ValueError, AttributeError):
        return _WIDTH


def has_descriptor(stream: TextIO) -> bool:
    """Whether it is a file of the system, not memory of this program."""
    try:
        stream.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def print_line(text: str, stream: TextIO) -> None:
    """Write `text` and its line end in one write. Any thread. Raises OSError.

    `print` writes the line end separately. With PYTHONUNBUFFERED, which images commonly set, another process or thread
    writes to the same stream in between. A file is written past the buffer of the stream: whoever waits for its reader
    must not have the lock of the buffer, which the end of the process needs.
    """
    line = f"{text}\n"
    if has_descriptor(stream):
        stream.flush()
        write_all(stream.fileno(), line.encode(stream.encoding or "utf-8", "backslashreplace"))
    else:
        stream.write(line)
        stream.flush()


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`, also to a pipe that does not block its writers. Raises OSError."""
    left = memoryview(content)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
