"""Downloads the objects of a model that the cache lacks, in parallel and each only once.

Two threads or processes never fetch the same object at once: one holds its partial file, the other fetches the other
missing objects and then waits. No thread waits while it holds a partial file, so two of them cannot deadlock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from core.errors import RepositoryUnavailable
from core.repository.cache.model_cache import ModelCache
from core.repository.cache.snapshot import Snapshot
from core.repository.download.backoff import Backoff, GivenUp
from core.repository.download.progress import DownloadProgress, ModelDownload
from core.repository.download.request_slots import RequestSlots
from core.repository.download.transfer import Transfer
from core.repository.download.verification import Damaged
from core.repository.stores.object_store import ObjectStore, StoredObject

_log = logging.getLogger("trident.repository")
# Seconds between two looks at another process's download: it may be nearly finished, or at the start of gigabytes.
_FIRST_LOOK, _LAST_LOOK = 0.005, 0.2


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
    ) -> Snapshot:
        """A snapshot with `contents`, held until its `release`; a path that ends with `/` is a folder.

        Blocks. Raises RepositoryUnavailable as the store does, and if an object fails too often, is damaged twice or
        does not fit on the disk. The other objects stay in the cache for the next attempt.
        """
        title = f"model '{model}'" + ("" if version is None else f" version {version}")
        snapshot = self.cache.snapshot(store.location, model, contents)
        complete = False
        try:
            if snapshot.holds(contents):
                self.progress.found(title, len(contents))
            else:
                with snapshot.staged(contents) as folder:
                    self._fill(store, model, title, contents, folder)
                self.cache.trim()
            complete = True
        finally:
            if not complete:
                snapshot.release()
        return snapshot

    def stop(self) -> None:
        """Make the running downloads fail soon, with RepositoryUnavailable; none starts again."""
        with self._lock:
            self._stopped = True
            for stop in self._running:
                stop.set()

    def _fill(
        self, store: ObjectStore, model: str, title: str, contents: Mapping[str, StoredObject], folder: Path
    ) -> None:
        """Put `contents` into `folder`, from the cache or from `store`."""
        missing: dict[str, StoredObject] = {}
        # Large objects first: the small ones then keep all threads busy until the end.
        for path, stored in sorted(contents.items(), key=lambda item: -item[1].size):
            if path.endswith("/"):
                self.cache.make_folder(folder / path)
            elif not self.cache.take(store.location, stored, folder / path):
                missing[path] = stored
        if not missing:
            self.progress.found(title, len(contents))
            return
        with self.progress.download(model, title, len(contents) - len(missing)) as report:
            report.want(len(missing), sum(stored.size for stored in missing.values()))
            self.cache.make_room(store.location, missing)
            stop = self._begin()
            try:
                _Fetch(self, store, folder, report, stop).run(missing)
            finally:
                with self._lock:
                    self._running.discard(stop)

    def _begin(self) -> threading.Event:
        stop = threading.Event()
        with self._lock:
            if self._stopped:
                raise _stopping()
            self._running.add(stop)
        return stop


class _Fetch:
    """The download of the objects that the cache lacks of one model."""

    def __init__(
        self, downloader: Downloader, store: ObjectStore, folder: Path, report: ModelDownload, stop: threading.Event
    ) -> None:
        self._downloader = downloader
        self._cache = downloader.cache
        self._store = store
        self._folder = folder
        self._report = report
        self._stop = stop
        self._slots = downloader.slots.of_fetch(stop)
        # Limits the open files and the number of objects that are incomplete when the process ends.
        self._open_slots = threading.Semaphore(2 * downloader.parallel)
        self._open: dict[str, Transfer] = {}
        self._again: dict[str, StoredObject] = {}
        self._damaged: set[str] = set()

    def run(self, missing: Mapping[str, StoredObject]) -> None:
        pending = missing
        pause = _FIRST_LOOK
        while pending:
            self._again = {}
            self._run_once(pending)
            if self._again and self._stop.wait(pause):
                raise _stopping()
            pause = min(_LAST_LOOK, 2 * pause) if len(self._again) == len(pending) else _FIRST_LOOK
            pending = self._again

    def _run_once(self, pending: Mapping[str, StoredObject]) -> None:
        """Try each object once. `_again` then has those that another download holds and those that were damaged."""
        futures: list[Future[None]] = []
        complete = False
        try:
            with ThreadPoolExecutor(self._downloader.parallel, "download") as pool:
                try:
                    self._submit(pending, pool, futures)
                    error = _first_error(futures)
                    complete = error is None
                finally:
                    if not complete:  # before the pool is closed, which waits for its threads
                        self._stop.set()
        finally:
            for transfer in self._open.values():
                transfer.partial.close()
            self._open.clear()
        if error is not None:
            raise _stopping() if isinstance(error, GivenUp) else error

    def _submit(
        self, pending: Mapping[str, StoredObject], pool: ThreadPoolExecutor, futures: list[Future[None]]
    ) -> None:
        for path, stored in pending.items():
            while not self._open_slots.acquire(timeout=_LAST_LOOK):
                if self._stop.is_set():
                    return
            transfer = self._begin(path, stored)
            if transfer is None:
                self._open_slots.release()
                continue
            futures += [pool.submit(self._work, path, transfer, task) for task in transfer.tasks]

    def _begin(self, path: str, stored: StoredObject) -> Transfer | None:
        """The transfer of an object; None if another download holds it or has just finished it."""
        partial = self._cache.try_part(self._store.location, stored, self._downloader.part_bytes)
        if partial is None:
            self._report.wait_for(stored.key)
            self._again[path] = stored
            return None
        begun = False
        try:
            if self._cache.take(self._store.location, stored, self._folder / path):
                self._report.found(stored.size)
                partial.discard()
                return None
            transfer = Transfer(
                self._store, stored, partial, self._report, self._downloader.backoff, self._slots, self._stop
            )
            self._open[path] = transfer
            begun = True
            return transfer
        finally:
            if not begun:
                partial.close()

    def _work(self, path: str, transfer: Transfer, task: int | None) -> None:
        """Run one task of a transfer in a thread of the pool; a failure stops the whole fetch."""
        complete = False
        try:
            if self._stop.is_set():
                raise GivenUp
            if transfer.run(task):
                self._settle(path, transfer)
                del self._open[path]
                self._open_slots.release()
            complete = True
        finally:
            if not complete:
                self._stop.set()

    def _settle(self, path: str, transfer: Transfer) -> None:
        wanted = transfer.wanted
        try:
            named = transfer.verification.conclude()
        except Damaged as damage:
            if path in self._damaged:
                raise RepositoryUnavailable(
                    f"'{wanted.key}' arrived damaged from {self._store.location}, twice: {damage}"
                ) from damage
            _log.warning(
                "'%s' arrived damaged from %s, downloading it again: %s", wanted.key, self._store.location, damage
            )
            self._damaged.add(path)
            self._again[path] = wanted
            self._report.have(-wanted.size)
            transfer.partial.discard()
        else:
            self._cache.admit(transfer.partial, self._store.location, wanted, self._folder / path, named=named)
            self._report.finished()
        transfer.partial.close()


def _first_error(futures: list[Future[None]]) -> BaseException | None:
    """Wait for all futures and return the first failure; GivenUp only without another failure."""
    errors = [error for future in as_completed(futures) if (error := future.exception()) is not None]
    return next((error for error in errors if not isinstance(error, GivenUp)), errors[0] if errors else None)


def _stopping() -> RepositoryUnavailable:
    return RepositoryUnavailable("the download was stopped: the server is stopping")
