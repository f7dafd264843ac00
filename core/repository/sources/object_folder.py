"""The objects of one folder in an object store as they are, whatever they mean, on the local disk through the cache."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from core.errors import RepositoryUnavailable
from core.repository.cache.snapshot import Snapshot
from core.repository.download.downloader import Downloader
from core.repository.stores.object_names import paths_problem
from core.repository.stores.object_store import ObjectStore, StoredObject, without_markers


class ObjectFolder:
    """All objects of `store`. Any thread, several at once. Methods block, and raise RepositoryUnavailable."""

    def __init__(self, store: ObjectStore, downloader: Downloader) -> None:
        self.location = store.location
        self._store = store
        self._downloader = downloader

    def objects(self, prefix: str = "", stop: threading.Event | None = None) -> dict[str, StoredObject]:
        """The objects whose path in the folder begins with `prefix`, by path.

        Raises GivenUp if `stop` is set while it waits for another attempt.
        """
        listing = f"list {self.location}"
        found = self._downloader.backoff.call(
            lambda: list(self._store.list(prefix)), listing, stop or threading.Event()
        )
        return without_markers({stored.key: stored for stored in found})

    def fetch(self, name: str, objects: Mapping[str, StoredObject]) -> Snapshot:
        """A folder called `name` with `objects`, from `objects`, held until its `release`."""
        problem = paths_problem(list(objects))
        if problem:
            raise RepositoryUnavailable(f"the objects in {self.location} cannot be stored: {problem}")
        return self._downloader.fetch(self._store, name, None, objects).verified()
