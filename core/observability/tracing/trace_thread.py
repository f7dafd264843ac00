"""The thread that writes traces, so that neither the hub nor an instance waits for a disk or a collector."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from core.observability.tracing.destination import Destination
from core.observability.tracing.setting import Setting
from core.observability.tracing.trace import Trace
from core.observability.tracing.trace_counts import Loss, TraceCounts

_log = logging.getLogger("trident.trace")

# Traces that wait to be written. A slow disk must not fill the memory.
_MOST_WAITING = 10_000
# Traces are collected for this long before they are written: each turn of the thread takes the interpreter's lock.
_GATHER_SECONDS = 0.1
_TICK_SECONDS = 1.0
_CLOSE_SECONDS = 10.0


class TraceThread:
    """Any thread may call `put`; the thread starts at the first. `tick` is called about every second from then on."""

    def __init__(self, destination: Destination, counts: TraceCounts, tick: Callable[[], None]) -> None:
        self._destination = destination
        self._counts = counts
        self._tick = tick
        self._waiting: deque[Trace | Setting] = deque()
        self._wake = threading.Event()
        # Set when what waits is to be written without gathering more.
        self._is_urgent = threading.Event()
        self._is_closing = False
        self._starting = threading.Lock()
        self._own_thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._starting:
            if self._own_thread is None and not self._is_closing:
                self._own_thread = threading.Thread(target=self._run, name="trident-trace", daemon=True)
                self._own_thread.start()

    def put(self, item: Trace | Setting) -> None:
        """Have a complete trace written, or what was kept of a setting that was replaced. Does not block."""
        if len(self._waiting) >= _MOST_WAITING and isinstance(item, Trace):
            self._counts.add_lost(Loss.QUEUE_FULL)
            item.setting.collected += 1
            return
        self._waiting.append(item)
        self._wake.set()

    def hasten(self) -> None:
        """Have what was put written at once. Does not block."""
        self._is_urgent.set()
        self._wake.set()

    def close(self) -> None:
        """Write everything and end. Blocks, at most ten seconds."""
        self._is_closing = True
        self.hasten()
        if self._own_thread is not None:
            self._own_thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(_TICK_SECONDS)
            self._is_urgent.wait(_GATHER_SECONDS)
            self._wake.clear()
            self._is_urgent.clear()
            self._write()
            self._tick()
        self._write()
        self._guard(self._destination.close)

    def _write(self) -> None:
        traces: list[Trace] = []
        while self._waiting:
            item = self._waiting.popleft()
            if isinstance(item, Trace):
                traces.append(item)
                continue
            # The traces of a setting come before its end.
            self._guard(lambda given=traces: self._destination.write(given))  # type: ignore[misc]
            self._guard(lambda ended=item: self._destination.finish(ended))  # type: ignore[misc]
            traces = []
        if traces:
            self._guard(lambda: self._destination.write(traces))

    def _guard(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception:  # the thread must live on: the server does, too
            _log.exception("traces could not be written")
