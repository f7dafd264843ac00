"""An object store in memory, with faults that a test prepares."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cache import ModelCache
from trident.core.repository.cloud_sources import Backoff, Downloader, ObjectFolder, ObjectStoreSource
from trident.core.repository.opener import SourceOpener, SourceOptions
from trident.core.repository.progress import DownloadProgress
from trident.core.repository.sources import Source
from trident.core.repository.stores.object_store import Checksum, StoredObject, TransientError

PIECE = 1000


@dataclass(frozen=True)
class Fault:
    """Makes one read raise `error` after `after` bytes of that read; without an error the read ends there."""

    after: int
    error: Exception | None = None


class MemoryStore:
    """An ObjectStore of `contents` by key. `digests`: the listing has MD5s; `checksums`: `checksum` returns them."""

    def __init__(
        self,
        contents: Mapping[str, bytes],
        *,
        location: str = "memory://bucket",
        digests: bool = True,
        checksums: bool = True,
    ) -> None:
        self.location = location
        self.contents = dict(contents)
        self.digests = digests
        self.checksums = checksums
        self.tags = dict.fromkeys(contents, "1")
        self.faults: dict[str, deque[Fault]] = {}
        self.listing_faults: deque[Exception] = deque()
        # The contents that the next reads of a key return, one per read.
        self.damaged: dict[str, deque[bytes]] = {}
        self.reads: list[tuple[str, int, int]] = []
        self.read_bytes = 0
        self.listings: list[str] = []
        self.asked: list[str] = []
        self.before_piece: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def put(self, key: str, content: bytes) -> None:
        self.contents[key] = content
        self.tags[key] = f"{self.tags.get(key, '')}1"

    def fail(self, key: str, *faults: Fault) -> None:
        self.faults[key] = deque(faults)

    def object(self, key: str) -> StoredObject:
        content = self.contents[key]
        return StoredObject(key, len(content), self.tags[key], f"md5:{md5(content)}" if self.digests else "")

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        self.listings.append(prefix)
        if self.listing_faults:
            raise self.listing_faults.popleft()
        yield from (self.object(key) for key in self.contents if key.startswith(prefix))

    def folders(self) -> Iterator[str]:
        if self.listing_faults:
            raise self.listing_faults.popleft()
        yield from {key.partition("/")[0] for key in self.contents if "/" in key}

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        with self._lock:
            self.reads.append((wanted.key, start, stop))
            faults = self.faults.get(wanted.key)
            fault = faults.popleft() if faults else None
            damaged = self.damaged.get(wanted.key)
            content = damaged.popleft() if damaged else self.contents.get(wanted.key)
        if content is None or self.tags[wanted.key] != wanted.tag:
            raise RepositoryUnavailable(f"'{wanted.key}' has changed since it was listed")
        end = stop if fault is None else min(stop, start + fault.after)
        for at in range(start, end, PIECE):
            self.before_piece()
            piece = content[at : min(end, at + PIECE)]
            with self._lock:
                self.read_bytes += len(piece)
            yield piece
        if fault is not None and fault.error is not None:
            raise fault.error

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        self.asked.append(wanted.key)
        if not self.checksums:
            return None
        return Checksum("md5", md5(self.contents[wanted.key]), partial(hashlib.md5, usedforsecurity=False))


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def lost(after: int = 0) -> Fault:
    return Fault(after, TransientError("connection lost"))


def downloader(
    directory: Path, *, part_bytes: int = 10 * PIECE, max_bytes: int = 0, pauses: list[float] | None = None
) -> Downloader:
    """A Downloader with a cache in `directory`. It records its pauses in `pauses` instead of waiting."""
    noted = [] if pauses is None else pauses
    backoff = Backoff(attempts=3, pause=lambda _, seconds: noted.append(seconds), draw=lambda: 1.0)
    cache = ModelCache(directory, max_bytes)
    return Downloader(cache, DownloadProgress(), parallel=4, part_bytes=part_bytes, backoff=backoff)


class MemoryOpener(SourceOpener):
    """Opens `store`, whatever the address."""

    def __init__(self, folder: Path, store: MemoryStore) -> None:
        super().__init__(SourceOptions(cache_directory=folder, cache_bytes=0))
        self._store = store
        self._loads = downloader(folder)

    def open_folder(self, text: str) -> ObjectFolder:
        return ObjectFolder(self._store, self._loads)

    def open(self, text: str, *, any_layout: bool = False, single_model: str = "") -> Source:
        return ObjectStoreSource(self._store, self._loads)

    def stop(self) -> None:
        self._loads.stop()
