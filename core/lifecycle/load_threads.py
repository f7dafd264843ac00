"""A bounded number of native threads that load models. They start when there is work and end without it.

They are daemon threads: a load that never ends must not keep the process alive, as `concurrent.futures` would.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class LoadThreads:
    """Any thread. Submitted work must not raise."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in its turn; after `close` drop it."""
        with self._lock:
            if self._closed:
                return
            self._waiting.append(work)
            if self._running == self._limit:
                return
            self._running += 1
        threading.Thread(target=self._run, name="trident-load", daemon=True).start()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Whether all submitted work was done within `timeout_s` seconds. Blocks."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._running, timeout_s)

    def close(self) -> None:
        """Drop the work that has not begun. Running work continues."""
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
