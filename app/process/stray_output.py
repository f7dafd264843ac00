"""Output of a child process on stdout and stderr beside its log: messages of native libraries and of the interpreter,
and what models print in the server's own process.

Descriptors 1 and 2 of the child become files in memory, which a thread of the child reads and logs. Not pipes: a
library that holds the interpreter lock would fill one and wait for the reader, which waits for that lock. The parent
has the files, too. When the child ends, however it ends, the parent logs what the child did not: no line is lost by a
crash. The log itself goes to the stdout and stderr that the child was started with.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

from trident.core.observability.log import FLUSH_S, flush_log, log_native_line, move_console

_log = logging.getLogger("trident.server")

_POLL_S = 0.25
_READ_SIZE = 1 << 16
# The lines of this size are logged together.
_STEP = 1 << 12
# The memory of lines that were read is freed from this size on.
_FREE_SIZE = 1 << 20
# fallocate: FALLOC_FL_PUNCH_HOLE, which frees a part of a file, with FALLOC_FL_KEEP_SIZE.
_FREE = 3


class CapturedOutput:
    """Made in the parent before the fork. The child calls `begin`, and the parent `end` after the child has ended.

    If the system gives no files for it, nothing is captured, and the output stays as it is.
    """

    def __init__(self) -> None:
        self._files: tuple[_CapturedFile, ...] = ()
        try:
            self._files = (_CapturedFile(1, logging.INFO), _CapturedFile(2, logging.WARNING))
        except OSError as error:
            _log.warning("what native libraries print cannot be logged: %s", error)

    def begin(self) -> None:
        """In the child: capture the descriptors from now on, and log their lines on a thread."""
        if not self._files:
            return
        try:
            consoles = [os.dup(each.descriptor) for each in self._files]
            # Each with its own offset, and always at the end: other processes may write to it as well.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            writers = [os.open(f"/proc/self/fd/{each.content}", flags) for each in self._files]
        except OSError as error:  # no /proc, or no stdout or stderr
            _log.debug("stdout and stderr are not captured: %s", error)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        encodings = (sys.stdout.encoding, sys.stderr.encoding)
        out, err = [
            open(console, "w", encoding=encoding, errors="backslashreplace")  # noqa: SIM115
            for console, encoding in zip(consoles, encodings, strict=True)
        ]
        move_console(out, err)
        for file, writer in zip(self._files, writers, strict=True):
            os.dup2(writer, file.descriptor)
            os.close(writer)

        def follow() -> None:
            while True:
                time.sleep(_POLL_S)
                for file in self._files:
                    file.log_lines(os.getpid())

        threading.Thread(target=follow, name="trident-output", daemon=True).start()

    def end(self, pid: int) -> None:
        """In the parent: log the remaining output of the child `pid`, and close the files."""
        until = time.monotonic() + FLUSH_S
        for file in self._files:
            file.log_lines(pid, until, is_all=True)
        self.close()

    def close(self) -> None:
        """Close the files, in another child."""
        for file in self._files:
            file.close()


class _CapturedFile:
    """The file that replaces `descriptor`. Lines of no known form are logged at `level`.

    The position up to which lines are logged is the file's offset, which both processes share.
    """

    def __init__(self, descriptor: int, level: int) -> None:
        self.descriptor = descriptor
        self._level = level
        self.content = os.memfd_create("trident-output")
        self._freed = 0

    def close(self) -> None:
        os.close(self.content)

    def log_lines(self, pid: int, until: float = math.inf, *, is_all: bool = False) -> None:
        """Log the lines that are complete, with `is_all` an incomplete last one, too.

        The log gets them as fast as it can write them, up to the monotonic time `until`.
        """
        start = os.lseek(self.content, 0, os.SEEK_CUR)
        while found := os.pread(self.content, _READ_SIZE, start):
            size = len(found) if is_all or len(found) == _READ_SIZE else 0
            size = found.rfind(b"\n") + 1 or size
            if not size:
                return
            unwritten = 0
            for line in found[:size].splitlines(keepends=True):
                log_native_line(line.decode("utf-8", "backslashreplace"), pid, self._level)
                unwritten += len(line)
                if unwritten >= _STEP:
                    start += self._written(start, unwritten, until)
                    unwritten = 0
            start += self._written(start, unwritten, until)
            if start - self._freed >= _FREE_SIZE:
                length = (start - self._freed) & -_FREE_SIZE
                ctypes.CDLL(None).fallocate(self.content, _FREE, ctypes.c_long(self._freed), ctypes.c_long(length))
                self._freed += length

    def _written(self, start: int, size: int, until: float) -> int:
        """Wait for the log, and move the position by `size`. If the process ends in between, its parent logs these
        lines again."""
        flush_log(min(FLUSH_S, until - time.monotonic()))
        os.lseek(self.content, start + size, os.SEEK_SET)
        return size


def log_stray_messages() -> None:
    """From now on, on all threads of this process and of those that are forked from it."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _in_thread


def log_hub_failures(hub: Any) -> None:
    """The same for the greenlets and callbacks of a gevent hub."""
    hub.print_exception = _in_greenlet


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _log.error("interrupted")
        return
    _log.critical("an unexpected error ended the process", exc_info=(kind, error, trace))


def _unraisable(found: Any) -> None:
    what = found.err_msg or "an exception was ignored"
    _log.error("%s in %r", what, found.object, exc_info=(found.exc_type, found.exc_value, found.exc_traceback))


def _in_thread(found: Any) -> None:
    if issubclass(found.exc_type, SystemExit):
        return
    name = found.thread.name if found.thread is not None else "unknown"
    _log.error("thread %s failed", name, exc_info=(found.exc_type, found.exc_value, found.exc_traceback))


def _in_greenlet(context: Any, kind: Any, error: Any, trace: Any) -> None:
    exc_info = (kind, error, trace) if isinstance(error, BaseException) else None
    _log.error("%s failed with %s", context, getattr(kind, "__name__", kind), exc_info=exc_info)
