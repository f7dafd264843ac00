"""Which requests are sampled. Source: docs/spec/trace-and-log.md section 2."""

from __future__ import annotations

import itertools
import threading

from core.observability.tracing.settings import UNLIMITED, TraceSettings


class Sampler:
    """One for each change of the settings: each begins to count anew. Any thread.

    `left` is how many more requests may be sampled, -1 for no limit; `sampled` is how many were.
    """

    def __init__(self, settings: TraceSettings) -> None:
        # 0: none.
        self._rate = settings.rate if settings.levels else 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.left = settings.count
        self.sampled = 0

    def sample(self) -> bool:
        """Whether the request that has just arrived is sampled."""
        rate = self._rate
        # `next` is atomic: only requests that may be sampled take the lock.
        if not rate or next(self._numbers) % rate or not self.left:
            return False
        with self._lock:
            if not self.left:
                return False
            if self.left != UNLIMITED:
                self.left -= 1
            self.sampled += 1
            return True
