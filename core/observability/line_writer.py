"""Lines for a file or a pipe that may stall: a disk that hangs, a reader that does not read.

A thread writes them, so that nothing that serves waits for it. Lines for which the queue has no room are dropped and
counted, over all processes of the server.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from weakref import WeakSet

# What waits to be written; with a line of 200 bytes a second of 1,300 requests.
_MOST_WAITING = 256 << 10
# Each turn of the thread takes the interpreter's lock: it writes the lines of this time together.
_GATHER_S = 0.05
# Writes to a pipe are not torn by those of other processes up to this size; those to the end of a file never are.
_PIPE_WRITE = select.PIPE_BUF
FILE_WRITE = 1 << 16
FLUSH_S = 1.0
"""How long the end of a process, or the reason for it, waits for its lines to be written."""

# Shared with all processes that are forked later. A process counts in the slot of its number, which may be that of one
# that has ended.
_SLOTS = 1024
_counts = memoryview(mmap.mmap(-1, _SLOTS * 8)).cast("Q")


def lines_dropped() -> int:
    """The lines that all processes of this server have dropped, or could not write, since its start."""
    return sum(_counts)


class LineWriter:
    """Any thread may call `put`. The thread that writes starts at the first line, in each process anew: of the lines
    that wait at a fork the parent writes all, and the child none."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        on_failure: Callable[[str], None],
        on_dropped: Callable[[int], None],
        write_size: int = _PIPE_WRITE,
    ) -> None:
        """`write` may block, and raises OSError or ValueError, whose text goes to `on_failure`. `on_dropped` is told
        how many lines were dropped, once there is room again. All three are called on the writing thread. Lines are
        written together up to `write_size` bytes."""
        self._write = write
        self._write_size = write_size
        self._on_failure = on_failure
        self._on_dropped = on_dropped
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._waiting = 0
        self._dropped = 0
        self._writing_since: float | None = None
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> None:
        """Have `line`, which has its end, written. Does not block."""
        with self._lock:
            if self._waiting and self._waiting + len(line) > _MOST_WAITING:
                self._dropped += 1
                _count(1)
                return
            self._waiting += len(line)
            self._queue.put(line)
            if self._waiting > _MOST_WAITING // 2:
                self._hurry.set()
            if self._thread is None:
                self._start()

    def flush(self, within_s: float = FLUSH_S) -> None:
        """Wait until the lines so far are written, but no longer than `within_s`, and not at all if nothing could be
        written for that long."""
        if self._thread is not None:
            written = threading.Event()
            self._queue.put(written)
            self._hurry.set()
            written.wait(self._patience(within_s))

    def close(self, within_s: float = FLUSH_S) -> bool:
        """End the thread after the lines so far; the next line starts another one. Waits as `flush` does. Returns
        whether it has ended."""
        thread = self._thread
        if thread is None:
            return True
        self._queue.put(None)
        self._hurry.set()
        thread.join(self._patience(within_s))
        return not thread.is_alive()

    def _patience(self, within_s: float) -> float:
        since = self._writing_since
        return max(0.0, within_s if since is None else since + within_s - time.monotonic())

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="trident-log", daemon=True)
        # A signal that the kernel gave to this thread would not wake the main thread, or would pass by its mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        except RuntimeError:  # no thread is to be had, as at the end of the interpreter: the next line tries again
            self._thread = None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        while True:
            items = [self._queue.get()]
            self._hurry.wait(_GATHER_S)
            self._hurry.clear()
            with contextlib.suppress(Empty):
                while True:
                    items.append(self._queue.get_nowait())
            lines: list[bytes] = []
            for item in items:
                if isinstance(item, bytes):
                    lines.append(item)
                elif item is not None:
                    self._write_lines(lines)
                    lines = []
                    item.set()
            self._write_lines(lines)
            if None in items and self._may_end():
                return

    def _may_end(self) -> bool:
        with self._lock:
            if self._queue.empty():
                self._thread = None
                return True
            return False

    def _write_lines(self, lines: list[bytes]) -> None:
        while lines:
            count, size = 1, len(lines[0])
            while count < len(lines) and size + len(lines[count]) <= self._write_size:
                size += len(lines[count])
                count += 1
            together, lines = lines[:count], lines[count:]
            self._writing_since = time.monotonic()
            try:
                self._write(b"".join(together))
            except (OSError, ValueError) as error:  # a closed pipe, a full disk; a closed stream
                _count(count)
                self._on_failure(str(error))
            finally:
                self._writing_since = None
                with self._lock:
                    self._waiting -= size
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._on_dropped(dropped)


def _count(lines: int) -> None:
    _counts[os.getpid() % _SLOTS] += lines


_all: WeakSet[LineWriter] = WeakSet()


def _before_fork() -> None:
    """End the threads that can end: a fork is safest in a process that has one."""
    for writer in list(_all):
        writer.close()


def _after_fork() -> None:
    for writer in list(_all):
        writer._begin()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
