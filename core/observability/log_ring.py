"""The last lines of the log of all processes of a server, in memory that they share, for the console.

Each line is an event in JSON. Whoever logs does not wait: a thread writes the lines. A reader takes no lock, and leaves
out what was overwritten while it read.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import threading

from trident.core.observability.log import JsonFormatter, LineHandler

_SIZE = 1 << 20
# Two positions: where the last whole line ends, and where the lines end that are perhaps being written.
_HEADER = 16
_LONGEST = 1 << 14


class LogRing:
    """Made before the processes that share it are forked."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("trident-log")
        os.ftruncate(self._descriptor, _HEADER + _SIZE)
        self._map = mmap.mmap(self._descriptor, _HEADER + _SIZE)

    def write(self, lines: bytes) -> None:
        """Append whole lines, up to the size of the ring. For one thread of each process."""
        # The lock of a process that ends is released.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            end = self._end()
            after = (end + len(lines)).to_bytes(8, "little")
            self._map[8:_HEADER] = after
            at = end % _SIZE
            first = lines[: _SIZE - at]
            self._map[_HEADER + at : _HEADER + at + len(first)] = first
            self._map[_HEADER : _HEADER + len(lines) - len(first)] = lines[len(first) :]
            self._map[:8] = after
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def read(self, after: int) -> tuple[int, list[bytes]]:
        """The whole lines behind the position `after`, of those that are still there, and the position behind them.

        Any thread.
        """
        end = self._end()
        # From the byte before `after`: behind the end of a line, a line begins.
        start = max(after - 1 if 0 < after <= end else 0, end - _SIZE)
        at = start % _SIZE
        ring = self._map[_HEADER:]
        content = (ring[at:] + ring[:at])[: end - start]
        lost = int.from_bytes(self._map[8:_HEADER], "little") - _SIZE - start
        if lost > 0:
            content = content[lost:]
            start += lost
        lines = content.split(b"\n")
        return end, [line for line in lines[1 if start else 0 :] if line]

    def _end(self) -> int:
        return int.from_bytes(self._map[:8], "little")


class _ShortFormatter(JsonFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if len(line) <= _LONGEST:
            return line
        event = json.loads(line)
        short = {name: event.get(name) for name in ("time", "level", "logger", "model", "pid")}
        return json.dumps({**short, "message": event["message"][: _LONGEST // 8] + "…"})


_ring: LogRing | None = None
_making = threading.Lock()


def keep_log_lines() -> None:
    """Keep the lines of this process, and of those that it forks, from now on. Call it after `configure_logging`."""
    global _ring
    with _making:
        if _ring is None:
            _ring = LogRing()
            handler = LineHandler(_ring.write)  # a line that is lost here is in the log
            handler.setFormatter(_ShortFormatter())
            logging.getLogger().addHandler(handler)


def read_log_lines(after: int) -> tuple[int, list[bytes]]:
    return _ring.read(after) if _ring is not None else (0, [])
