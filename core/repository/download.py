"""The download of the objects that the cache lacks of one model, on a pool of threads.

s3transfer, which reads ranges in parallel as well, is not used: it removes the temporary file of a transfer that fails,
so that a later start could not resume it, and it serves one storage only.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cache import ModelCache, Snapshot
from trident.core.repository.partial_file import ContentHash, PartialFile, digest_checksum
from trident.core.repository.progress import DownloadProgress, ModelDownload
from trident.core.repository.stores.object_store import Checksum, ObjectStore, StoredObject, TransientError

_LOOK_EVERY = 0.2


class GivenUp(Exception):
    """The work was told to stop. The caller that stopped it knows why."""


class FetchSlots:
    """The reads that one fetch may run at once: as many as `shared` slots are free, and one of its own.

    So a very slow storage does not stop the other fetches.
    """

    def __init__(self, shared: threading.BoundedSemaphore, stop: threading.Event) -> None:
        self._shared = shared
        self._own = threading.BoundedSemaphore(1)
        self._stop = stop

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a slot in the block, after waiting for one. Raises GivenUp when the fetch is told to stop."""
        slot = self._acquire()
        try:
            yield
        finally:
            slot.release()

    def _acquire(self) -> threading.BoundedSemaphore:
        while not self._stop.is_set():
            if self._own.acquire(blocking=False):
                return self._own
            if self._shared.acquire(timeout=_LOOK_EVERY):
                return self._shared
        raise GivenUp


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, so that many servers do not return to a storage at the same moment.

    It stops after `attempts` failures in a row. `base` and `cap` are in seconds. `pause` waits for an event with a
    timeout in seconds and `draw` returns a number in [0, 1); tests replace both.
    """

    attempts: int = 6
    base: float = 0.2
    cap: float = 10.0
    pause: Callable[[threading.Event, float], object] = threading.Event.wait
    draw: Callable[[], float] = random.random

    def wait(self, failures: int, stop: threading.Event) -> None:
        """Wait after the `failures`-th failure in a row. Raises GivenUp as soon as `stop` is set."""
        self.pause(stop, self.draw() * min(self.cap, self.base * 2.0 ** (failures - 1)))
        if stop.is_set():
            raise GivenUp

    def call(self, operation: Callable[[], T], what: str, stop: threading.Event) -> T:
        """The result of `operation`, called again after each TransientError.

        Raises RepositoryUnavailable ("failed to `what` ...") after the last attempt, GivenUp if `stop` is set before.
        """
        failures = 0
        while True:
            try:
                return operation()
            except TransientError as error:
                failures += 1
                if failures >= self.attempts:
                    raise RepositoryUnavailable(f"failed to {what} in {failures} attempts: {error}") from error
            self.wait(failures, stop)


class Damaged(Exception):
    """The downloaded content differs from the storage's checksum."""


class Verification:
    """Hashes a partial file in order, on the thread that has just finished a part.

    `ask` gets the checksum from the storage. It is called only if the listing had no digest, or if the digest differs
    from the content: for objects encrypted by KMS, S3 lists an etag that looks like an MD5 but is not. Receiving does
    not wait for the hash, which on a fast network is slower. Methods raise GivenUp after `stop` is set.
    """

    def __init__(
        self, wanted: StoredObject, partial: PartialFile, ask: Callable[[], Checksum | None], stop: threading.Event
    ) -> None:
        self._partial = partial
        self._ask = ask
        self._stop = stop
        self._digest = digest_checksum(wanted.digest)
        self._checksum: Checksum | None = self._digest
        self._hash: ContentHash | None = None
        self._asked = False
        self._next_part = 0
        self._lock = threading.Lock()

    def advance(self) -> None:
        """Hash the parts that have arrived in order; does nothing while another thread is hashing."""
        if self._lock.acquire(blocking=False):
            try:
                self._hash_finished()
            finally:
                self._lock.release()

    def conclude(self) -> bool:
        """Verify the content after all parts are finished: True if it matches the digest of the listing.

        False if it only matches the storage's checksum, or if there is no checksum. Raises Damaged otherwise.
        """
        with self._lock:
            self._hash_finished()
            if self._checksum is None or self._hash is None:
                return False
            damage = _difference(self._checksum, self._hash)
            if self._digest is None:
                if damage:
                    raise Damaged(damage)
                return False
            if damage:
                self._conclude_otherwise(damage)
            return not damage

    def _conclude_otherwise(self, damage: str) -> None:
        checksum = self._ask()
        if checksum is None:
            return
        if self._digest is not None and checksum.value.lower() == self._digest.value:
            raise Damaged(damage)
        second = ContentHash(checksum)
        for piece in self._partial.pieces(0, self._partial.size):
            self._go_on()
            second.update(piece)
        difference = _difference(checksum, second)
        if difference:
            raise Damaged(difference)

    def _hash_finished(self) -> None:
        if not self._asked:
            if self._digest is None:
                self._checksum = self._ask()
            self._asked = True
            if self._checksum is not None:
                self._hash = ContentHash(self._checksum)
        while self._partial.is_finished(self._next_part):
            self._go_on()
            if self._hash is not None:
                for piece in self._partial.pieces(*self._partial.range_of(self._next_part)):
                    self._hash.update(piece)
            self._next_part += 1

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise GivenUp


def _difference(checksum: Checksum, made: ContentHash) -> str:
    """The difference in words; empty without one."""
    value = made.value()
    if value == checksum.value.lower():
        return ""
    return f"checksum {checksum.name} expected {checksum.value}, got {value}"


class Transfer:
    """The transfer of one object; several threads may run its tasks. Methods may raise GivenUp after `stop` is set."""

    def __init__(
        self,
        store: ObjectStore,
        wanted: StoredObject,
        partial: PartialFile,
        report: ModelDownload,
        backoff: Backoff,
        slots: FetchSlots,
        stop: threading.Event,
    ) -> None:
        self.wanted = wanted
        self.partial = partial
        self.verification = Verification(wanted, partial, self._ask, stop)
        self._store = store
        self._report = report
        self._backoff = backoff
        self._slots = slots
        self._stop = stop
        self._lock = threading.Lock()
        # If an earlier start fetched all parts, one task remains: the verification.
        self.tasks: list[int | None] = [*partial.unfinished()] or [None]
        self._left = len(self.tasks)
        report.have(partial.finished_bytes())

    def run(self, task: int | None) -> bool:
        """Run one of `tasks`. True for the last one: then all bytes are here, and `verification` can be concluded.

        Raises RepositoryUnavailable as the store does, and after too many failures without progress.
        """
        if task is not None:
            self._fetch(task)
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if not is_last:
            self.verification.advance()
        return is_last

    def _fetch(self, part: int) -> None:
        reached, stop = self.partial.range_of(part)
        failures = 0
        while reached < stop:
            begun = reached
            cause = TransientError("the body ended early")
            try:
                with self._slots.one():
                    for piece in self._store.read(self.wanted, begun, stop):
                        reached = self._keep(piece, reached, stop)
            except TransientError as error:
                cause = error
            if reached < stop:
                failures = 1 if reached > begun else failures + 1
                if failures >= self._backoff.attempts:
                    raise self._failure(part, reached, failures, cause) from cause
                self._report.retried()
                self._backoff.wait(failures, self._stop)
        self.partial.finish(part)

    def _keep(self, piece: bytes, reached: int, stop: int) -> int:
        """Write a piece and return where the next one begins."""
        if self._stop.is_set():
            raise GivenUp
        if reached + len(piece) > stop:
            raise TransientError("the storage sent more bytes than requested")
        self.partial.write(reached, piece)
        self._report.received(len(piece))
        return reached + len(piece)

    def _failure(self, part: int, reached: int, failures: int, cause: TransientError) -> RepositoryUnavailable:
        received = self.partial.finished_bytes() + reached - self.partial.range_of(part)[0]
        return RepositoryUnavailable(
            f"failed to download '{self.wanted.key}' from {self._store.location}: {received} of {self.wanted.size} "
            f"bytes arrived, then {failures} attempts failed without progress, the last one with: {cause}"
        )

    def _ask(self) -> Checksum | None:
        what = f"get the checksum of '{self.wanted.key}' from {self._store.location}"
        return self._backoff.call(lambda: self._store.checksum(self.wanted), what, self._stop)


_log = logging.getLogger("trident.repository")
# Seconds between two looks at another process's download: it may be nearly finished, or at the start of gigabytes.
_FIRST_LOOK, _LAST_LOOK = 0.005, 0.2


class ModelFetch:
    """The download of the objects that the cache lacks of one model."""

    def __init__(
        self,
        downloader: Downloader,
        store: ObjectStore,
        folder: Path,
        report: ModelDownload,
        stop: threading.Event,
    ) -> None:
        self._downloader = downloader
        self._cache = downloader.cache
        self._store = store
        self._folder = folder
        self._report = report
        self._stop = stop
        self._slots = FetchSlots(downloader.shared_slots, stop)
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
                raise stopping()
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


def stopping() -> RepositoryUnavailable:
    """The error of a download that was told to stop."""
    return RepositoryUnavailable("the download was stopped: the server is stopping")


# Two threads or processes never fetch the same object at once: one holds its partial file, the other fetches the other
# missing objects and then waits. No thread waits while it holds a partial file, so two of them cannot deadlock.


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
        self.shared_slots = threading.BoundedSemaphore(parallel)
        self._lock = threading.Lock()
        self._running: set[threading.Event] = set()
        self._stopped = False

    def fetch(
        self, store: ObjectStore, model: str, version: int | None, contents: Mapping[str, StoredObject]
    ) -> Snapshot:
        """A snapshot with `contents`, held until its `release`; a path that ends with `/` is a folder.

        Raises RepositoryUnavailable as the store does, and if an object fails too often, is damaged twice or does not
        fit on the disk. The other objects stay in the cache for the next attempt.
        """
        title = f"model '{model}'" + ("" if version is None else f" version {version}")
        snapshot = self.cache.snapshot(store.location, model, contents)
        if snapshot.holds(contents):
            self.progress.found(title, len(contents))
            return snapshot
        try:
            with snapshot.staged(contents) as folder:
                self._fill(store, model, title, contents, folder)
        except BaseException:
            snapshot.release()
            raise
        self.cache.trim()
        return snapshot

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
        folder: Path,
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
                ModelFetch(self, store, folder, report, stop).run(missing)
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
