"""The response cache in the memory of the process that runs the models.

Source: docs/spec/schedulers.md section 3.7 ("eviction", "too large").
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from sys import getsizeof

from core.inference.layout import TensorLayout
from core.observability.metrics.snapshot import ResponseCacheMetrics
from core.response_cache.cached_response import CachedResponse, layout_size

_log = logging.getLogger("trident.cache")

ENTRY_SIZE = 120
"""What an entry of the ordered dict takes besides its key and its value, in bytes, with its share of unused slots."""
_AT_ONCE = 1000


class LocalCache:
    """Keeps responses by their keys in at most `size` bytes of memory; the least recently used one goes first.

    Every method may be called on any thread and holds a lock for some microseconds.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._used = 0
        self._evictions = 0
        # How many entries share each layout.
        self._layouts: dict[TensorLayout, int] = {}

    def get(self, key: bytes) -> CachedResponse | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep `response`, unless there is one of that key already or it is larger than the whole cache."""
        layout = response.layout
        with self._lock:
            if key in self._entries:
                return
            needed = _size(key, response)
            with_layout = needed + layout_size(layout)
            if with_layout > self.size:
                _log.warning(
                    "Failed to insert key into response cache: Requested byte_size: %d is greater than total cache "
                    "size: %d",
                    with_layout,
                    self.size,
                )
                return
            while self._used + (needed if layout in self._layouts else with_layout) > self.size:
                self._remove(next(iter(self._entries)))
                self._evictions += 1
            if layout not in self._layouts:
                self._layouts[layout] = 0
                self._used += layout_size(layout)
            self._layouts[layout] += 1
            self._entries[key] = response
            self._used += needed

    def holds(self, nbytes: int) -> bool:
        """Whether a response with outputs of `nbytes` bytes could be kept."""
        return nbytes < self.size

    def forget(self, scope: bytes) -> None:
        """Remove all entries whose keys begin with `scope`."""
        with self._lock:
            keys = list(self._entries)
        # Looked through without the lock: there may be a million of them.
        keys = [key for key in keys if key.startswith(scope)]
        for start in range(0, len(keys), _AT_ONCE):
            with self._lock:
                for key in keys[start : start + _AT_ONCE]:
                    if key in self._entries:
                        self._remove(key)

    def metrics(self) -> ResponseCacheMetrics:
        """What the metrics page shows of it."""
        with self._lock:
            return ResponseCacheMetrics(
                size=self.size, used=self._used, entries=len(self._entries), evictions=self._evictions
            )

    def _remove(self, key: bytes) -> None:
        response = self._entries.pop(key)
        self._used -= _size(key, response)
        layout = response.layout
        self._layouts[layout] -= 1
        if not self._layouts[layout]:
            del self._layouts[layout]
            self._used -= layout_size(layout)


def _size(key: bytes, response: CachedResponse) -> int:
    return ENTRY_SIZE + getsizeof(key) + response.nbytes
