"""The response cache in the memory of the process that runs the models.

Source: docs/spec/schedulers.md section 3.7 ("eviction", "too large").
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from struct import Struct
from sys import getsizeof

from trident.core.inference.tensors import TensorLayout
from trident.core.observability.metrics.snapshot import ResponseCacheMetrics
from trident.core.response_cache.response_cache import CachedResponse, OnFound, block_size, layout_size

_log = logging.getLogger("trident.cache")

_SCOPE = Struct("<Q")


class LocalCache:
    """Implements ResponseCache in at most `size` bytes of memory; the least recently used response goes first.

    Each load of a model has a scope of its own, so that a reload begins without answers.
    """

    answers_later = False

    def __init__(self, size: int) -> None:
        self.size = size
        self._scopes = itertools.count(1)
        self._lock = threading.Lock()
        # --- guarded by the lock
        # The least recently used one is the first.
        self._responses: OrderedDict[bytes, CachedResponse] = OrderedDict()
        # How many responses share each layout.
        self._layouts: Counter[TensorLayout] = Counter()
        # The memory of responses, keys and layouts.
        self._nbytes = 0
        self._evictions = 0

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        return _SCOPE.pack(next(self._scopes))

    def look_up(self, key: bytes, on_found: OnFound) -> None:
        """None: `get` has found all that there is."""

    def get(self, key: bytes) -> CachedResponse | None:
        with self._lock:
            response = self._responses.get(key)
            if response is not None:
                self._responses.move_to_end(key)
            return response

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep it, unless there is one of that key already or it is larger than the whole cache."""
        needed = _size(key, response) + layout_size(response.layout)
        if needed > self.size:
            _log.warning(
                "Failed to insert key into response cache: Requested byte_size: %d is greater than total cache "
                "size: %d",
                needed,
                self.size,
            )
            return
        with self._lock:
            if key in self._responses:
                return
            self._responses[key] = response
            self._nbytes += _size(key, response)
            if not self._layouts[response.layout]:
                self._nbytes += layout_size(response.layout)
            self._layouts[response.layout] += 1
            while self._used > self.size and self._responses:
                self._remove(next(iter(self._responses)))
                self._evictions += 1

    def holds(self, nbytes: int) -> bool:
        return nbytes < self.size

    def close_scope(self, scope: bytes) -> None:
        with self._lock:
            for key in [key for key in self._responses if key.startswith(scope)]:
                self._remove(key)
            self._responses = OrderedDict(self._responses)  # a dict keeps the places of removed entries

    def metrics(self) -> ResponseCacheMetrics:
        with self._lock:
            return ResponseCacheMetrics(
                size=self.size, used=self._used, entries=len(self._responses), evictions=self._evictions
            )

    def close(self) -> None:
        """Nothing to close."""

    @property
    def _used(self) -> int:
        return self._nbytes + getsizeof(self._responses)

    def _remove(self, key: bytes) -> None:
        response = self._responses.pop(key)
        self._nbytes -= _size(key, response)
        self._layouts[response.layout] -= 1
        if not self._layouts[response.layout]:
            del self._layouts[response.layout]
            self._nbytes -= layout_size(response.layout)


def _size(key: bytes, response: CachedResponse) -> int:
    """The memory of all that only this entry has, in bytes."""
    return block_size(getsizeof(key)) + response.nbytes
