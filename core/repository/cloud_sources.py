"""A model repository in an object store: listed there, downloaded in parallel, used from a cache on the local disk.

Names in the store are not trusted. A model whose name cannot be a folder's is left out of `scan` and logged. A model
with a file whose name cannot be a file's fails when it is fetched; the other models are not affected.

The download is on a pool of threads. s3transfer, which reads ranges in parallel as well, serves one storage only, and
verifies nothing that it reads so.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Event, Lock, Semaphore
from typing import TYPE_CHECKING, TypeVar

from trident.core.config.platforms import unused_in_hub_folder
from trident.core.errors import RepositoryUnavailable, installation
from trident.core.repository.cache import FileLock, ModelCache, Snapshot, disk_failure, is_full
from trident.core.repository.location import Location, Scheme
from trident.core.repository.progress import DownloadProgress, ModelDownload
from trident.core.repository.repository import ModelDirectory, version_of
from trident.core.repository.sources import Fetched, SourceFile, UsableNames
from trident.core.repository.stores.object_store import (
    AzureCredential,
    Checksum,
    CloudCredential,
    GcsCredential,
    ObjectStore,
    RenewedStore,
    S3Credential,
    StoredObject,
    TransientError,
    digest_checksum,
    name_problem,
    paths_problem,
    read_cloud_credentials,
    without_markers,
)

if TYPE_CHECKING:
    from trident.core.repository.stores.azure import AzureStore
    from trident.core.repository.stores.gcs import GcsStore
    from trident.core.repository.stores.s3 import S3Store


class ObjectStoreSource:
    """The Source of a prefix in an object store."""

    def __init__(self, store: ObjectStore, downloader: Downloader) -> None:
        self.location = store.location
        self._store = store
        self._downloader = downloader
        self._lock = Lock()
        # The last listing by model and path: it has the digests, which a SourceFile does not have.
        self._listed: dict[str, dict[str, StoredObject]] = {}
        self._names = UsableNames(self.location, name_problem)

    def models(self) -> Sequence[str]:
        listing = f"list {self.location}"
        return self._names.of(self._downloader.backoff.call(lambda: set(self._store.folders()), listing, Event()))

    def check_exists(self) -> None:
        if not self._list(""):
            raise RepositoryUnavailable(
                f"there is nothing in {self.location}", hint="check how the bucket and the prefix are spelled"
            )

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        by_model: dict[str, dict[str, StoredObject]] = {}
        for stored in self._list(""):
            model, slash, path = stored.key.partition("/")
            if slash:
                by_model.setdefault(model, {})[path] = stored
        usable = {model: without_markers(by_model[model]) for model in self._names.of(by_model)}
        with self._lock:
            self._listed = usable
        return {model: _files(listed) for model, listed in usable.items()}

    def files(self, model: str) -> Sequence[SourceFile] | None:
        if name_problem(model):
            return None
        prefix = f"{model}/"
        found = {stored.key.removeprefix(prefix): stored for stored in self._list(prefix)}
        listed = without_markers(found)
        with self._lock:
            if found:
                self._listed[model] = listed
            else:
                self._listed.pop(model, None)
        return _files(listed) if found else None

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        problem = name_problem(model)
        problem = f"'{model}' has {problem}" if problem else paths_problem([file.path for file in files])
        if problem:
            raise RepositoryUnavailable(f"model '{model}' in {self.location} cannot be stored: {problem}", model=model)
        unused = unused_in_hub_folder({file.path for file in files})
        wanted = [file for file in files if version_of(file.path) in (None, version) and file.path not in unused]
        snapshot = self._downloader.fetch(self._store, model, version, self._stored(model, wanted))
        found: dict[str, set[str]] = {}
        for file in files:
            folder, slash, rest = file.path.partition("/")
            if slash:
                found.setdefault(folder, set()).update(rest.split("/")[:1] if rest else [])
        return Fetched(
            ModelDirectory(model, snapshot.path, {folder: frozenset(names) for folder, names in found.items()}),
            snapshot.release,
        )

    def _stored(self, model: str, files: Iterable[SourceFile]) -> dict[str, StoredObject]:
        """Return the listed objects of `files`. Raises RepositoryUnavailable if it lacks one."""
        with self._lock:
            listed = self._listed.get(model, {})
        contents = {}
        for file in files:
            stored = listed.get(file.path)
            if stored is None or (stored.tag, stored.size) != (file.tag, file.size):
                raise RepositoryUnavailable(
                    f"'{file.path}' of model '{model}' in {self.location} has changed since it was listed",
                    hint="list the repository again",
                    model=model,
                )
            contents[file.path] = stored
        return contents

    def _list(self, prefix: str) -> list[StoredObject]:
        listing = f"list {self.location}"
        return self._downloader.backoff.call(lambda: list(self._store.list(prefix)), listing, Event())


def _files(listed: Mapping[str, StoredObject]) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(path, stored.size, stored.tag) for path, stored in sorted(listed.items()))


class ObjectFolder:
    """All objects of `store`. Any thread, several at once. Methods block, and raise RepositoryUnavailable."""

    def __init__(self, store: ObjectStore, downloader: Downloader) -> None:
        self.location = store.location
        self._store = store
        self._downloader = downloader

    def objects(self, prefix: str = "", stop: Event | None = None) -> dict[str, StoredObject]:
        """Return the objects whose path in the folder begins with `prefix`, by path.

        Raises GivenUp if `stop` is set while it waits for another attempt.
        """
        listing = f"list {self.location}"
        found = self._downloader.backoff.call(lambda: list(self._store.list(prefix)), listing, stop or Event())
        return without_markers({stored.key: stored for stored in found})

    def fetch(self, name: str, objects: Mapping[str, StoredObject]) -> Snapshot:
        """Return a folder called `name` with objects that `objects` listed; it stays until its `release`."""
        problem = paths_problem(list(objects))
        if problem:
            raise RepositoryUnavailable(f"the objects in {self.location} cannot be stored: {problem}")
        return self._downloader.fetch(self._store, name, None, objects)


def renewed_store(location: Location, credited: Location, credential_path: str, *, writes: bool = False) -> ObjectStore:
    """Return the store of a cloud location, with the credentials for `credited`. Raises what `open_store` raises, and
    as `read_cloud_credentials`."""
    return RenewedStore(
        location.text,
        lambda: read_cloud_credentials(credential_path).credentials_for(credited),
        lambda credential: open_store(location, credential, writes=writes),
    )


def open_store(
    location: Location, credential: CloudCredential | None, *, writes: bool = False
) -> S3Store | GcsStore | AzureStore:
    """Return the store of a cloud location, without asking its storage. `writes`: `put` is used. Raises what the stores
    raise."""
    # Imported here: each SDK costs a second and tens of megabytes, which only servers with such a storage need to pay.
    if location.scheme is Scheme.S3:
        from trident.core.repository.stores.s3 import S3Store

        return S3Store(location, credential if isinstance(credential, S3Credential) else None)
    if location.scheme is Scheme.AS:
        try:
            from trident.core.repository.stores.azure import AzureStore
        except ImportError as error:
            raise RepositoryUnavailable(
                f"as:// file-system not supported: {location.text} needs the package {error.name}",
                hint=installation("azure"),
            ) from None
        return AzureStore(location, credential if isinstance(credential, AzureCredential) else None)
    from trident.core.repository.stores.gcs import GcsStore

    return GcsStore(location, credential if isinstance(credential, GcsCredential) else None, writes)


# --- the download of the objects that the cache lacks of one model

T = TypeVar("T")
_log = logging.getLogger("trident.repository")
# Seconds between two looks at another process's download: it may be nearly finished, or at the start of gigabytes.
_FIRST_LOOK, _LAST_LOOK = 0.005, 0.2
# Small enough to stay in a core's cache between the copy and the hash.
_HASHED_AT_ONCE = 512 << 10


class GivenUp(Exception):
    """The work was stopped by its caller."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, so that many servers do not return to a storage at the same moment.

    It stops after `attempts` failures in a row. `base` and `cap` are in seconds. `pause` waits for an event with a
    timeout in seconds and `draw` returns a number in [0, 1); tests replace both.
    """

    attempts: int = 6
    base: float = 0.2
    cap: float = 10.0
    pause: Callable[[Event, float], object] = Event.wait
    draw: Callable[[], float] = random.random

    def wait(self, failures: int, stop: Event) -> None:
        """Wait after the `failures`-th failure in a row. Raises GivenUp as soon as `stop` is set."""
        self.pause(stop, self.draw() * min(self.cap, self.base * 2.0 ** (failures - 1)))
        if stop.is_set():
            raise GivenUp

    def call(self, operation: Callable[[], T], what: str, stop: Event) -> T:
        """Return the result of `operation`, called again after each TransientError.

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


class Downloader:
    """Downloads for all cloud repositories of a process; any thread, several models at once.

    At most `parallel` reads run at once. An object larger than `part_bytes` is read in ranges of that size.
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
        self.reads = BoundedSemaphore(parallel)
        self._lock = Lock()
        self._running: set[Event] = set()
        self._stopped = False

    def fetch(
        self, store: ObjectStore, model: str, version: int | None, contents: Mapping[str, StoredObject]
    ) -> Snapshot:
        """Return a snapshot with `contents`, which stays until its `release`; a path that ends with `/` is a folder.

        Raises RepositoryUnavailable as the store does, and if an object fails too often, is damaged twice or does not
        fit on the disk. The objects that are complete stay in the cache for the next attempt.
        """
        title = f"model '{model}'" + ("" if version is None else f" version {version}")
        snapshot = self.cache.snapshot(store.location, model, contents)
        if snapshot.holds(contents):
            self.progress.found(title, len(contents))
            return snapshot
        try:
            with (
                self._running_fetch() as stop,
                self._alone(store.location, model, stop),
                snapshot.staged(contents) as folder,
            ):
                self._fill(store, model, title, contents, folder, stop)
        except BaseException as error:
            snapshot.release()
            if isinstance(error, GivenUp):
                raise RepositoryUnavailable("the download was stopped: the server is stopping") from None
            raise
        self.cache.trim()
        return snapshot

    def stop(self) -> None:
        """Make the running downloads fail soon, with RepositoryUnavailable; none starts again."""
        with self._lock:
            self._stopped = True
            for stop in self._running:
                stop.set()

    @contextmanager
    def _running_fetch(self) -> Iterator[Event]:
        stop = Event()
        with self._lock:
            if self._stopped:
                raise GivenUp
            self._running.add(stop)
        try:
            yield stop
        finally:
            with self._lock:
                self._running.discard(stop)

    @contextmanager
    def _alone(self, location: str, model: str, stop: Event) -> Iterator[None]:
        """Lock the model's downloads: what another thread or process downloads meanwhile is in the cache then."""
        pause = _FIRST_LOOK
        while (lock := self.cache.try_lock(location, model)) is None:
            if pause == _FIRST_LOOK:
                _log.info("waiting for another download of model '%s' from %s", model, location)
            if stop.wait(pause):
                raise GivenUp
            pause = min(_LAST_LOOK, 2 * pause)
        try:
            yield
        finally:
            lock.release()

    def _fill(
        self,
        store: ObjectStore,
        model: str,
        title: str,
        contents: Mapping[str, StoredObject],
        folder: Path,
        stop: Event,
    ) -> None:
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
        size = sum(stored.size for stored in missing.values())
        with self.progress.download(model, title, len(contents) - len(missing), len(missing), size) as report:
            self.cache.make_room(size)
            ModelFetch(self, store, folder, report, stop).run(missing)


class ModelFetch:
    """Downloads the objects of a model that the cache lacks. Methods raise GivenUp after `stop` is set."""

    def __init__(
        self, downloader: Downloader, store: ObjectStore, folder: Path, report: ModelDownload, stop: Event
    ) -> None:
        self.downloader = downloader
        self.store = store
        self.folder = folder
        self.report = report
        self.stop = stop
        # Limits the open files.
        self._open_slots = Semaphore(2 * downloader.parallel)
        self._open: set[Transfer] = set()
        self._damaged: dict[str, str] = {}

    def run(self, missing: Mapping[str, StoredObject]) -> None:
        """Put the objects `missing` into the folder and the cache. One that arrives damaged gets a second attempt."""
        self._download(missing)
        damaged = {path: missing[path] for path in self._damaged}
        for path, stored in damaged.items():
            _log.warning(
                "'%s' arrived damaged from %s, downloading it again: %s",
                stored.key,
                self.store.location,
                self._damaged[path],
            )
            self.report.discarded(stored.size)
        self._damaged.clear()
        self._download(damaged)
        for path, damage in self._damaged.items():
            raise RepositoryUnavailable(
                f"'{missing[path].key}' arrived damaged from {self.store.location}, twice: {damage}"
            )

    def go_on(self) -> None:
        if self.stop.is_set():
            raise GivenUp

    def _download(self, wanted: Mapping[str, StoredObject]) -> None:
        """Try each object once. The first failure stops all."""
        futures: list[Future[None]] = []
        try:
            with ThreadPoolExecutor(self.downloader.parallel, "download") as pool:
                try:
                    for path, stored in wanted.items():
                        while not self._open_slots.acquire(timeout=_LAST_LOOK):
                            if self.stop.is_set():
                                break
                        if self.stop.is_set():
                            break
                        transfer = Transfer(self, path, stored)
                        self._open.add(transfer)
                        futures += [pool.submit(self._work, transfer, part) for part in range(transfer.parts)]
                    errors = [error for each in as_completed(futures) if (error := each.exception()) is not None]
                except BaseException:
                    self.stop.set()  # before the pool is closed, which waits for its threads
                    raise
        finally:
            for transfer in self._open:
                transfer.discard()
            self._open.clear()
        if errors:
            raise next((error for error in errors if not isinstance(error, GivenUp)), errors[0])
        self.go_on()

    def _work(self, transfer: Transfer, part: int) -> None:
        """Fetch one part of an object in a thread of the pool, and with the last one verify and store the object."""
        try:
            self.go_on()
            if not transfer.fetch(part):
                return
            try:
                named = transfer.verify()
            except Damaged as damage:
                self._damaged[transfer.path] = str(damage)
                transfer.discard()
            else:
                target, cache = self.folder / transfer.path, self.downloader.cache
                cache.admit(transfer.file, self.store.location, transfer.wanted, target, named=named)
                self.report.finished()
                transfer.file.release()
            self._open.discard(transfer)
            self._open_slots.release()
        except BaseException:
            self.stop.set()
            raise


class Damaged(Exception):
    """The downloaded content differs from the storage's checksum."""


class Transfer:
    """Fetches one object into a part file of the cache; several threads fetch its parts.

    Methods that use the disk raise RepositoryUnavailable.
    """

    def __init__(self, fetch: ModelFetch, path: str, wanted: StoredObject) -> None:
        self.path = path
        self.wanted = wanted
        self.file: FileLock = fetch.downloader.cache.part(fetch.store.location, wanted)
        self.parts = max(1, -(-wanted.size // fetch.downloader.part_bytes))
        self._fetch = fetch
        self._store = fetch.store
        self._lock = Lock()
        self._finished: set[int] = set()
        # --- guarded by this lock: the thread that has just finished a part hashes in order what has arrived
        self._hashing = Lock()
        self._digest = digest_checksum(wanted.digest)
        self._checksum: Checksum | None = None
        self._hash: ContentHash | None = None
        self._asked = False
        self._hashed_parts = 0

    def fetch(self, part: int) -> bool:
        """Fetch a part of the content. Returns True for the last one: then `verify` can be called.

        Raises RepositoryUnavailable as the store does, and after too many failures without progress.
        """
        backoff, report = self._fetch.downloader.backoff, self._fetch.report
        reached, stop = self._range_of(part)
        failures = 0
        while reached < stop:
            begun = reached
            cause = TransientError("the body ended early")
            try:
                with self._slot():
                    for piece in self._store.read(self.wanted, begun, stop):
                        reached = self._keep(piece, reached, stop)
            except TransientError as error:
                cause = error
            if reached < stop:
                failures = 1 if reached > begun else failures + 1
                if failures >= backoff.attempts:
                    received = sum(end - first for first, end in map(self._range_of, self._finished))
                    received += reached - self._range_of(part)[0]
                    raise RepositoryUnavailable(
                        f"failed to download '{self.wanted.key}' from {self._store.location}: {received} of "
                        f"{self.wanted.size} bytes arrived, then {failures} attempts failed without progress, the last "
                        f"one with: {cause}"
                    ) from cause
                report.retried()
                backoff.wait(failures, self._fetch.stop)
        with self._lock:
            self._finished.add(part)
            is_last = len(self._finished) == self.parts
        # Receiving does not wait for the hash, which on a fast network is slower.
        if not is_last and self._hashing.acquire(blocking=False):
            try:
                self._hash_finished()
            finally:
                self._hashing.release()
        return is_last

    def verify(self) -> bool:
        """Return whether the content, of which all parts are fetched, matches the digest of the listing.

        False if it only matches the storage's checksum, or if there is no checksum. Raises Damaged otherwise.
        """
        with self._hashing:
            self._hash_finished()
            if self._checksum is None or self._hash is None:
                return False
            damage = _difference(self._checksum, self._hash)
            if not damage:
                return self._digest is not None
            # For objects encrypted by KMS, S3 lists an etag that looks like an MD5 but is not.
            asked = self._ask() if self._digest is not None else self._checksum
            if asked is None:
                return False
            if self._digest is None or asked.value.lower() == self._digest.value:
                raise Damaged(damage)
            second = ContentHash(asked)
            for piece in self._pieces(0, self.wanted.size):
                second.update(piece)
            if difference := _difference(asked, second):
                raise Damaged(difference)
            return False

    def discard(self) -> None:
        self.file.path.unlink(missing_ok=True)
        self.file.release()

    @contextmanager
    def _slot(self) -> Iterator[None]:
        reads = self._fetch.downloader.reads
        while not reads.acquire(timeout=_LAST_LOOK):
            self._fetch.go_on()
        try:
            yield
        finally:
            reads.release()

    def _range_of(self, part: int) -> tuple[int, int]:
        start = part * self._fetch.downloader.part_bytes
        return start, min(self.wanted.size, start + self._fetch.downloader.part_bytes)

    def _keep(self, piece: bytes, reached: int, stop: int) -> int:
        self._fetch.go_on()
        if reached + len(piece) > stop:
            raise TransientError("the storage sent more bytes than requested")
        view = memoryview(piece)
        try:
            while view:
                written = os.pwrite(self.file.fd, view, reached)
                view, reached = view[written:], reached + written
        except OSError as error:
            raise self._failed(error) from error
        self._fetch.report.received(len(piece))
        return reached

    def _hash_finished(self) -> None:
        if not self._asked:
            self._checksum = self._digest or self._ask()
            self._asked = True
            self._hash = ContentHash(self._checksum) if self._checksum is not None else None
        while self._hashed_parts in self._finished:
            if self._hash is not None:
                for piece in self._pieces(*self._range_of(self._hashed_parts)):
                    self._hash.update(piece)
            self._hashed_parts += 1

    def _pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes [start, stop) in pieces. Each piece overwrites the previous one."""
        buffer = memoryview(bytearray(min(_HASHED_AT_ONCE, max(0, stop - start))))
        while start < stop:
            self._fetch.go_on()
            try:
                size = os.preadv(self.file.fd, [buffer[: stop - start]], start)
            except OSError as error:
                raise self._failed(error) from error
            if not size:
                raise RepositoryUnavailable(f"{self.file.path} was truncated during the download")
            yield buffer[:size]
            start += size

    def _ask(self) -> Checksum | None:
        what = f"get the checksum of '{self.wanted.key}' from {self._store.location}"
        return self._fetch.downloader.backoff.call(lambda: self._store.checksum(self.wanted), what, self._fetch.stop)

    def _failed(self, error: OSError) -> RepositoryUnavailable:
        failure = disk_failure(error, self._fetch.downloader.cache.directory, self.wanted.size)
        if is_full(error):
            os.ftruncate(self.file.fd, 0)  # frees the space now, not when the last thread ends
        return failure


class ContentHash:
    """A checksum that takes the content from beginning to end, in pieces of any size."""

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._current = checksum.make()
        self._in_part = 0
        self._digests: list[str] = []

    def update(self, content: bytes | memoryview) -> None:
        size = self._checksum.part_size
        while size and self._in_part + len(content) > size:
            room = size - self._in_part
            self._current.update(content[:room])
            content = content[room:]
            self._end_part()
        self._current.update(content)
        self._in_part += len(content)

    def value(self) -> str:
        """Return the checksum of the content so far, in hex as the storage writes it."""
        if not self._checksum.part_size:
            return self._current.hexdigest().lower()
        if self._in_part or not self._digests:
            self._end_part()
        whole = self._checksum.make()
        whole.update(bytes.fromhex("".join(self._digests)))
        return whole.hexdigest().lower()

    def _end_part(self) -> None:
        self._digests.append(self._current.hexdigest())
        self._current = self._checksum.make()
        self._in_part = 0


def _difference(checksum: Checksum, made: ContentHash) -> str:
    value = made.value()
    if value == checksum.value.lower():
        return ""
    return f"checksum {checksum.name} expected {checksum.value}, got {value}"
