"""An object store whose credentials may be replaced while the server runs.

Source: docs/spec/repository.md section 1.10 ("on failure the file is re-read once").
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from core.errors import RepositoryUnavailable, ServerError
from core.repository.stores.object_store import Checksum, ObjectStore, StoredObject, TransientError

_C = TypeVar("_C")


class RenewedStore(Generic[_C]):
    """The ObjectStore that `make` makes from the credential that `read` returns; made at its first use.

    After each failure it reads the credential again. If that has changed, the failure becomes a TransientError: the
    caller retries, and a new store answers. A file that has become unreadable changes nothing.
    """

    def __init__(self, location: str, read: Callable[[], _C], make: Callable[[_C], ObjectStore]) -> None:
        """Raises what `read` raises. The methods raise what `make` raises."""
        self.location = location
        self._read = read
        self._make = make
        self._lock = threading.Lock()
        self._credential = read()
        self._store: ObjectStore | None = None

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        store = None
        try:
            store = self._current()
            yield from store.list(prefix)
        except RepositoryUnavailable:
            self._renew(store)
            raise

    def folders(self, pages: int | None = None) -> Iterator[str]:
        store = None
        try:
            store = self._current()
            yield from store.folders(pages)
        except RepositoryUnavailable:
            self._renew(store)
            raise

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        store = None
        try:
            store = self._current()
            yield from store.read(wanted, start, stop)
        except RepositoryUnavailable:
            self._renew(store)
            raise

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        store = None
        try:
            store = self._current()
            return store.checksum(wanted)
        except RepositoryUnavailable:
            self._renew(store)
            raise

    def _current(self) -> ObjectStore:
        with self._lock:
            if self._store is None:
                self._store = self._make(self._credential)
            return self._store

    def _renew(self, store: ObjectStore | None) -> None:
        """Handle a failure of `store` or of making it. Raises TransientError if the credential has changed."""
        with self._lock:
            if self._store is store:
                try:
                    credential = self._read()
                except ServerError:
                    return
                if credential == self._credential:
                    return
                self._credential, self._store = credential, None
        raise TransientError(f"{self.location}: the credential file has changed")
