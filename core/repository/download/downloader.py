"""Downloads the objects of a model that the cache lacks, in parallel and each only once.

Two threads or processes never fetch the same object at once: one holds its partial file, the other fetches the other
missing objects and then waits. No thread waits while it holds a partial file, so two of them cannot deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from core.repository.cache.model_cache import ModelCache
from core.repository.cache.snapshot import Staging
from core.repository.download.arrival import Arrival
from core.repository.download.backoff import Backoff
from core.repository.download.model_fetch import ModelFetch, stopping
from core.repository.download.progress import DownloadProgress
from core.repository.download.request_slots import RequestSlots
from core.repository.stores.object_store import ObjectStore, StoredObject


class Downloader:
    """Downloads for all cloud repositories of a process; any thread, several models at once.

    At most `parallel` reads run at once, plus one for each model. An object larger than `part_bytes` is read in ranges
    of that size; a later start resumes after the ranges that are complete.
    """

    def __init__(
        self,
        cache: ModelCache,
        progress: DownloadProgress,
        *,
        parallel: int = 16,
        part_bytes: int = 8 << 20,
        backoff: Backoff | None = None,
    ) -> None:
        self.cache = cache
        self.progress = progress
        self.parallel = parallel
        self.part_bytes = part_bytes
        self.backoff = backoff or Backoff()
        self.slots = RequestSlots(parallel)
        self._lock = threading.Lock()
        self._running: set[threading.Event] = set()
        self._stopped = False

    def fetch(
        self, store: ObjectStore, model: str, version: int | None, contents: Mapping[str, StoredObject]
    ) -> Arrival:
        """A snapshot with `contents`, held until its `release`; a path that ends with `/` is a folder.

        Blocks until all bytes are on the disk, and all objects of one part are verified; `Arrival.verify` waits for the
        others. Both raise RepositoryUnavailable as the store does, and if an object fails too often, is damaged twice
        or does not fit on the disk. The other objects stay in the cache for the next attempt.
        """
        title = f"model '{model}'" + ("" if version is None else f" version {version}")
        snapshot = self.cache.snapshot(store.location, model, contents)
        if snapshot.holds(contents):
            self.progress.found(title, len(contents))
            return Arrival(snapshot)

        def download(arrived: Callable[[], None]) -> bool:
            with snapshot.staged(contents) as staging:
                unchanged = self._fill(store, model, title, contents, staging, arrived)
            self.cache.trim()
            return unchanged

        return Arrival.of(snapshot, download)

    def stop(self) -> None:
        """Make the running downloads fail soon, with RepositoryUnavailable; none starts again."""
        with self._lock:
            self._stopped = True
            for stop in self._running:
                stop.set()

    def _fill(
        self,
        store: ObjectStore,
        model: str,
        title: str,
        contents: Mapping[str, StoredObject],
        staging: Staging,
        arrived: Callable[[], None],
    ) -> bool:
        """Put `contents` into `staging`, from the cache or from `store`. False if a file was replaced after `arrived`.

        As soon as all bytes are there, `staging` is published and `arrived` called.
        """
        folder = staging.folder
        missing: dict[str, StoredObject] = {}
        # Large objects first: the small ones then keep all threads busy until the end.
        for path, stored in sorted(contents.items(), key=lambda item: -item[1].size):
            if path.endswith("/"):
                self.cache.make_folder(folder / path)
            elif not self.cache.take(store.location, stored, folder / path):
                missing[path] = stored
        if not missing:
            self.progress.found(title, len(contents))
            return True
        with self.progress.download(model, title, len(contents) - len(missing)) as report:
            report.want(len(missing), sum(stored.size for stored in missing.values()))
            self.cache.make_room(store.location, missing)
            stop = self._begin()
            try:
                return ModelFetch(self, store, staging, report, stop, arrived).run(missing)
            finally:
                with self._lock:
                    self._running.discard(stop)

    def _begin(self) -> threading.Event:
        stop = threading.Event()
        with self._lock:
            if self._stopped:
                raise stopping()
            self._running.add(stop)
        return stop
