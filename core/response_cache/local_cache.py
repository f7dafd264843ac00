"""The response cache in the memory of the process that runs the models.

Source: docs/spec/schedulers.md section 3.7 ("eviction", "too large").
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from struct import Struct
from sys import getsizeof

from core.inference.layout import TensorLayout
from core.observability.metrics.snapshot import ResponseCacheMetrics
from core.response_cache.cached_response import CachedResponse, layout_size
from core.response_cache.response_cache import OnFound

_log = logging.getLogger("trident.cache")

ENTRY_SIZE = 120
"""What an entry of the ordered dict takes besides its key and its value, in bytes, with its share of unused slots."""
_AT_ONCE = 1000
_SCOPE = Struct("<Q")


class LocalCache:
    """Implements ResponseCache in at most `size` bytes of memory; the least recently used response goes first.

    Each load of a model has a scope of its own, so that a reload begins without answers.
    """

    answers_later = False

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._used = 0
        self._evictions = 0
        # How many entries share each layout.
        self._layouts: dict[TensorLayout, int] = {}
        self._scopes = itertools.count(1)

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        return _SCOPE.pack(next(self._scopes))

    def look_up(self, key: bytes, on_found: OnFound) -> None:
        """Nobody is asked: `get` has found all that there is."""

    def get(self, key: bytes) -> CachedResponse | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep it, unless there is one of that key already or it is larger than the whole cache."""
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
        return nbytes < self.size

    def close_scope(self, scope: bytes) -> None:
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
        with self._lock:
            return ResponseCacheMetrics(
                size=self.size, used=self._used, entries=len(self._entries), evictions=self._evictions
            )

    def close(self) -> None:
        """It has neither threads nor connections."""

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
