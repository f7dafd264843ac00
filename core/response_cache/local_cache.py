"""The response cache in the memory of the process that runs the models.

Source: docs/spec/schedulers.md section 3.7 ("eviction", "too large").
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from struct import Struct

from core.inference.layout import TensorLayout
from core.observability.metrics.snapshot import ResponseCacheMetrics
from core.response_cache.cached_response import CachedResponse, layout_size
from core.response_cache.entries import Entries, Entry
from core.response_cache.response_cache import OnFound

_log = logging.getLogger("trident.cache")

_SCOPE = Struct("<Q")


class LocalCache:
    """Implements ResponseCache in at most `size` bytes of memory; the least recently used response goes first.

    Each load of a model has a scope of its own, so that a reload begins without answers.
    """

    answers_later = False

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._entries = Entries(size)
        self._evictions = 0
        # How many entries share each layout, and the memory of the layouts.
        self._layouts: dict[TensorLayout, int] = {}
        self._layouts_bytes = 0
        self._scopes = itertools.count(1)

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        return _SCOPE.pack(next(self._scopes))

    def look_up(self, key: bytes, on_found: OnFound) -> None:
        """Nobody is asked: `get` has found all that there is."""

    def get(self, key: bytes) -> CachedResponse | None:
        with self._lock:
            entry = self._entries.use(key)
            return entry.response if entry is not None else None

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep it, unless there is one of that key already or it is larger than the whole cache."""
        layout = response.layout
        entry = Entry(key, response)
        needed = entry.nbytes + layout_size(layout)
        if needed > self.size:
            _log.warning(
                "Failed to insert key into response cache: Requested byte_size: %d is greater than total cache "
                "size: %d",
                needed,
                self.size,
            )
            return
        with self._lock:
            if self._entries.of(key) is not None:
                return
            if layout not in self._layouts:
                self._layouts[layout] = 0
                self._layouts_bytes += layout_size(layout)
            self._layouts[layout] += 1
            self._entries.add(entry)
            while self._used > self.size and (oldest := self._entries.oldest) is not None:
                self._entries.remove(oldest)
                self._leave_layout(oldest)
                self._evictions += 1

    def holds(self, nbytes: int) -> bool:
        return nbytes < self.size

    def close_scope(self, scope: bytes) -> None:
        for index in range(self._entries.tables):
            with self._lock:  # a table at a time: there may be a million entries
                for entry in self._entries.remove_scope(index, scope):
                    self._leave_layout(entry)

    def metrics(self) -> ResponseCacheMetrics:
        with self._lock:
            return ResponseCacheMetrics(
                size=self.size, used=self._used, entries=self._entries.count, evictions=self._evictions
            )

    def close(self) -> None:
        """It has neither threads nor connections."""

    @property
    def _used(self) -> int:
        return self._entries.nbytes + self._layouts_bytes

    def _leave_layout(self, entry: Entry) -> None:
        """Forget the layout of a removed entry if it was the last one with it."""
        layout = entry.response.layout
        self._layouts[layout] -= 1
        if not self._layouts[layout]:
            del self._layouts[layout]
            self._layouts_bytes -= layout_size(layout)
