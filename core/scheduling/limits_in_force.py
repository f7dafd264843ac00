"""The limits of a scheduler's batches, which may change while it serves."""

from __future__ import annotations

import threading

from core.scheduling.policy import BatchLimits


class LimitsInForce:
    """`current` is replaced as a whole, so any thread may read it at any time."""

    __slots__ = ("_is_stopped", "_lock", "current")

    def __init__(self, limits: BatchLimits) -> None:
        self._lock = threading.Lock()
        self._is_stopped = False
        self.current = limits

    def change(self, limits: BatchLimits) -> None:
        """Form batches by `limits` from now on. A batch that waits already waits as long as it was told to."""
        with self._lock:
            self.current = limits._replace(delay_ns=0) if self._is_stopped else limits

    def stop(self) -> None:
        """No batch waits from now on, whatever limits come."""
        with self._lock:
            self._is_stopped = True
            self.current = self.current._replace(delay_ns=0)
