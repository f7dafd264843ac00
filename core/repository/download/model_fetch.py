"""The download of the objects that the cache lacks of one model, on a pool of threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

from core.errors import RepositoryUnavailable
from core.repository.cache.snapshot import Staging
from core.repository.download.backoff import GivenUp
from core.repository.download.progress import ModelDownload
from core.repository.download.transfer import Transfer
from core.repository.download.verification import Damaged
from core.repository.stores.object_store import ObjectStore, StoredObject

if TYPE_CHECKING:
    from core.repository.download.downloader import Downloader

_log = logging.getLogger("trident.repository")
# Seconds between two looks at another process's download: it may be nearly finished, or at the start of gigabytes.
_FIRST_LOOK, _LAST_LOOK = 0.005, 0.2


class ModelFetch:
    """The download of the objects that the cache lacks of one model."""

    def __init__(
        self,
        downloader: Downloader,
        store: ObjectStore,
        staging: Staging,
        report: ModelDownload,
        stop: threading.Event,
        arrived: Callable[[], None],
    ) -> None:
        self._downloader = downloader
        self._cache = downloader.cache
        self._store = store
        self._staging = staging
        self._report = report
        self._arrived = arrived
        self._stop = stop
        self._slots = downloader.slots.of_fetch(stop)
        # Limits the open files and the number of objects that are incomplete when the process ends.
        self._open_slots = threading.Semaphore(2 * downloader.parallel)
        self._open: dict[str, Transfer] = {}
        self._again: dict[str, StoredObject] = {}
        self._damaged: set[str] = set()
        # The objects that lack bytes, or the verification that those of one part get at once; and those that are linked
        # into the folder before they are verified.
        self._lock = threading.Lock()
        self._missing: set[str] = set()
        self._linked: set[str] = set()
        self._replaced = False

    def run(self, missing: Mapping[str, StoredObject]) -> bool:
        """Fetch the objects. False if one was replaced after all had arrived."""
        self._missing = set(missing)
        pending = missing
        pause = _FIRST_LOOK
        while pending:
            self._again = {}
            self._run_once(pending)
            if self._again and self._stop.wait(pause):
                raise stopping()
            pause = min(_LAST_LOOK, 2 * pause) if len(self._again) == len(pending) else _FIRST_LOOK
            pending = self._again
        return not self._replaced

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
            raise stopping() if isinstance(error, GivenUp) else error

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
            if self._cache.take(self._store.location, stored, self._staging.folder / path):
                self._report.found(stored.size)
                partial.discard()
                self._arrive(path)
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
                if transfer.partial.parts > 1 and self._cache.link_part(transfer.partial, self._staging.folder / path):
                    self._linked.add(path)
                    self._arrive(path)
                self._settle(path, transfer)
                del self._open[path]
                self._open_slots.release()
            complete = True
        finally:
            if not complete:
                self._stop.set()

    def _arrive(self, path: str) -> None:
        """Note that an object is in the folder. The last one publishes it, if there is something left to verify."""
        with self._lock:
            self._missing.discard(path)
            if self._missing or not self._linked or self._staging.is_published:
                return
            self._staging.publish()
        self._arrived()

    def _withdraw(self, path: str) -> None:
        """Take an object out of the folder."""
        with self._lock:
            self._linked.discard(path)
            self._staging.remove(path)
            if self._staging.is_published:
                self._replaced = True
            else:
                self._missing.add(path)

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
            self._withdraw(path)
            self._again[path] = wanted
            self._report.have(-wanted.size)
            transfer.partial.discard()
        else:
            target = self._staging.folder / path
            linked = path in self._linked
            self._cache.admit(transfer.partial, self._store.location, wanted, target, named=named, linked=linked)
            self._report.finished()
            self._linked.discard(path)
            self._arrive(path)
        transfer.partial.close()


def _first_error(futures: list[Future[None]]) -> BaseException | None:
    """Wait for all futures and return the first failure; GivenUp only without another failure."""
    errors = [error for future in as_completed(futures) if (error := future.exception()) is not None]
    return next((error for error in errors if not isinstance(error, GivenUp)), errors[0] if errors else None)


def stopping() -> RepositoryUnavailable:
    """The error of a download that was told to stop."""
    return RepositoryUnavailable("the download was stopped: the server is stopping")
