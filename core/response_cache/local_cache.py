"""The response cache in the memory of the process that runs the models.

Source: docs/spec/schedulers.md section 3.7 ("eviction", "too large").
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from struct import Struct
from sys import getsizeof

from trident.core.inference.tensors import TensorLayout
from trident.core.observability.metrics.snapshot import ResponseCacheMetrics
from trident.core.response_cache.response_cache import CachedResponse, OnFound, block_size, layout_size

_MOST_TABLES = 256
_PER_TABLE = 1 << 16


class Entry:
    """A response under its key. `nbytes` is the memory of all that only this entry has, in bytes.

    While it is in the chain, `older` and `newer` are its neighbours in the order of use.
    """

    __slots__ = ("key", "nbytes", "newer", "older", "response")
    older: Entry
    newer: Entry

    def __init__(self, key: bytes, response: CachedResponse) -> None:
        self.key = key
        self.response = response
        self.nbytes = block_size(getsizeof(self)) + block_size(getsizeof(key)) + response.nbytes


class Entries:
    """Entries of about `size` bytes together. Not thread-safe: the lock of its cache guards it.

    `nbytes` is the memory of `count` entries and of the tables.
    """

    def __init__(self, size: int) -> None:
        self._tables: list[dict[bytes, Entry]] = [{} for _ in range(min(_MOST_TABLES, 1 + size // _PER_TABLE))]
        # Its `newer` is the oldest entry, its `older` the newest.
        self._end = end = Entry(b"", CachedResponse(TensorLayout(()), b"", None))
        end.older = end.newer = end
        self.nbytes = 0
        self.count = 0

    def use(self, key: bytes) -> Entry | None:
        """The entry of that key, from now on the one that was used last."""
        tables = self._tables
        entry = tables[hash(key) % len(tables)].get(key)
        end = self._end
        if entry is not None and entry is not end.older:
            entry.older.newer, entry.newer.older = entry.newer, entry.older
            _append(entry, end)
        return entry

    def of(self, key: bytes) -> Entry | None:
        """The entry of that key, without a use of it."""
        return self._table(key).get(key)

    def add(self, entry: Entry) -> None:
        """Add an entry of a key that has none."""
        index = hash(entry.key) % len(self._tables)
        table = self._tables[index]
        before = getsizeof(table)
        table[entry.key] = entry
        if getsizeof(table) != before:
            # It has doubled, mostly because of the places of removed entries: a new one has no more than it needs.
            table = self._tables[index] = dict(table.items())
            self.nbytes += getsizeof(table) - before
        self.nbytes += entry.nbytes
        self.count += 1
        _append(entry, self._end)

    def remove(self, entry: Entry) -> None:
        del self._table(entry.key)[entry.key]
        self.nbytes -= entry.nbytes
        self.count -= 1
        entry.older.newer, entry.newer.older = entry.newer, entry.older
        del entry.older, entry.newer  # it holds no other one in memory

    def remove_scope(self, index: int, scope: bytes) -> list[Entry]:
        """Remove the entries of table `index` whose keys begin with `scope`, and what the table kept for them."""
        table = self._tables[index]
        removed = [entry for key, entry in table.items() if key.startswith(scope)]
        for entry in removed:
            self.remove(entry)
        self._tables[index] = dict(table.items())
        self.nbytes += getsizeof(self._tables[index]) - getsizeof(table)
        return removed

    @property
    def oldest(self) -> Entry | None:
        """The entry that was not used for the longest time."""
        oldest = self._end.newer
        return oldest if oldest is not self._end else None

    @property
    def tables(self) -> int:
        return len(self._tables)

    def _table(self, key: bytes) -> dict[bytes, Entry]:
        return self._tables[hash(key) % len(self._tables)]


def _append(entry: Entry, end: Entry) -> None:
    """Make an entry the newest of the chain that ends in `end`."""
    newest = end.older
    entry.older, entry.newer = newest, end
    newest.newer = end.older = entry


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
        """None: `get` has found all that there is."""

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
        """Nothing to close."""

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
