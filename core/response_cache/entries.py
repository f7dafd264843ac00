"""The entries of a cache in memory: found by their keys, in the order of their last use, with the memory they take.

An OrderedDict does the same, but copies its table whenever it has had enough insertions: a cache of many small answers
would grow by a fifth for a moment, and the process would keep that. Here there are many small tables, and the order is
a chain of the entries.
"""

from __future__ import annotations

from sys import getsizeof

from core.inference.layout import TensorLayout
from core.response_cache.cached_response import CachedResponse, block_size

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
