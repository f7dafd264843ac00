"""What a child process writes to stderr beside its log: messages of native libraries and of the interpreter.

Descriptor 2 of the child becomes a file in memory, which a thread of the child reads and logs. Not a pipe: a library
that holds the interpreter lock would fill it and wait for the reader, which waits for that lock. The parent has the
file, too. When the child ends, however it ends, the parent logs what the child did not: no line is lost by a crash. The
log itself goes to the stderr that the child was started with.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
import threading
import time

from core.observability.logging import move_stderr
from core.observability.native_lines import log_native_line

_log = logging.getLogger("trident.server")

_POLL_S = 0.25
_READ_SIZE = 1 << 16
# The memory of lines that were read is freed from this size on.
_FREE_SIZE = 1 << 20
_STDERR = 2
# fallocate: FALLOC_FL_PUNCH_HOLE, which frees a part of a file, with FALLOC_FL_KEEP_SIZE.
_FREE = 3


class CapturedStderr:
    """Made in the parent before the fork. The child calls `begin`, and the parent `end` after the child has ended.

    The position up to which lines are logged is the file's offset, which both processes share.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self._file = _memory_file()
        self._freed = 0

    def begin(self) -> None:
        """In the child: capture descriptor 2 from now on, and log its lines on a thread."""
        try:
            # Its own offset, and always at the end: other processes may write to it as well.
            writer = os.open(f"/proc/self/fd/{self._file}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            console = os.dup(_STDERR)
        except OSError as error:  # no /proc, or no stderr
            _log.debug("stderr is not captured: %s", error)
            return
        sys.stderr.flush()
        move_stderr(open(console, "w", encoding=sys.stderr.encoding, errors="backslashreplace"))  # noqa: SIM115
        os.dup2(writer, _STDERR)
        os.close(writer)
        threading.Thread(target=self._follow, name="trident-stderr", daemon=True).start()

    def end(self, pid: int) -> None:
        """In the parent: log what is left of the child `pid`, and close the file."""
        self._log_lines(pid, is_all=True)
        self.close()

    def close(self) -> None:
        """In another child: leave the file to those whom it concerns."""
        os.close(self._file)

    def _follow(self) -> None:
        pid = os.getpid()
        while True:
            time.sleep(_POLL_S)
            self._log_lines(pid)

    def _log_lines(self, pid: int, *, is_all: bool = False) -> None:
        """Log the lines that are complete, with `is_all` an incomplete last one, too."""
        start = os.lseek(self._file, 0, os.SEEK_CUR)
        while found := os.pread(self._file, _READ_SIZE, start):
            size = len(found) if is_all or len(found) == _READ_SIZE else 0
            size = found.rfind(b"\n") + 1 or size
            if not size:
                return
            for line in found[:size].splitlines(keepends=True):
                log_native_line(line.decode("utf-8", "backslashreplace"), pid)
                start += len(line)
                # After the line is logged: if the process ends in between, its parent logs this one line again.
                os.lseek(self._file, start, os.SEEK_SET)
            self._free(start)

    def _free(self, until: int) -> None:
        if until - self._freed < _FREE_SIZE:
            return
        length = (until - self._freed) & -_FREE_SIZE
        ctypes.CDLL(None).fallocate(self._file, _FREE, ctypes.c_long(self._freed), ctypes.c_long(length))
        self._freed += length


def capture_stderr() -> CapturedStderr | None:
    """A capture for the next child; None, and its stderr stays as it is, if the system gives no file for it."""
    try:
        return CapturedStderr()
    except OSError as error:
        _log.warning("what native libraries print cannot be logged: %s", error)
        return None


def _memory_file() -> int:
    try:
        return os.memfd_create("trident-stderr")
    except OSError:  # a sandbox without it
        descriptor, path = tempfile.mkstemp(prefix="stderr-")
        os.unlink(path)
        return descriptor
