"""Native threads that load models: a bounded number, started when there is something to do, gone when there is not.

They are daemons: a load that takes for ever must not hold up the end of the process, as the executors of
`concurrent.futures` do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class LoadThreads:
    """Any thread. What is submitted must not raise."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Have `work` done in its turn; dropped after `close`."""
        with self._lock:
            if self._closed:
                return
            self._waiting.append(work)
            if self._running == self._limit:
                return
            self._running += 1
        threading.Thread(target=self._run, name="trident-load", daemon=True).start()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Whether all that was submitted is done within `timeout_s` seconds."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._running, timeout_s)

    def close(self) -> None:
        """Begin nothing more. What runs goes on."""
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    self._idle.notify_all()
                    return
                work = self._waiting.popleft()
            work()
