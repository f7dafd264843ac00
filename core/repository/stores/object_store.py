"""The protocol between the downloader and an object store. One package per storage implements it.

    ObjectStore     the protocol
    ├── S3Store        botocore (s3/)
    └── GcsStore       google-cloud-storage (gcs/)

Every method blocks on the network. The source opener imports a storage's package, and with it the SDK, when it makes
the first store of that storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


class Hash(Protocol):
    """A running checksum with the interface of hashlib."""

    def update(self, content: bytes | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Checksum:
    """The storage's checksum of an object's content. `make` starts a hash of that kind; `value` is its hexdigest.

    `part_size` is 0 for a hash of the whole content. Otherwise each part of `part_size` bytes (the last part may be
    shorter) is hashed separately, and `value` is the hash of the parts' digests, in hex (S3's multi-part etag).
    """

    name: str
    value: str
    make: Callable[[], Hash]
    part_size: int = 0


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a listing. `key` is relative to the store's prefix; `size` is in bytes.

    `tag` (etag or generation) differs whenever the content differs. `digest` identifies the content itself, under any
    key of any store, as `md5:<hex>`; it is empty if the listing has no checksum of the whole content.
    """

    key: str
    size: int
    tag: str
    digest: str = ""


class TransientError(Exception):
    """A failure that a retry may cure: a lost connection, a truncated body, a 5xx status, throttling."""


class ObjectStore(Protocol):
    """All objects under one prefix of one bucket; any thread, several at once.

    Every method raises TransientError for a failure that a retry may cure (after the SDK's own few attempts), and
    RepositoryUnavailable for any other: a missing bucket, a refusal (the message names the identity, the call, the
    object and the permission that it needs, never a secret), or an object that is gone or has another tag than listed.
    """

    location: str

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """All objects whose key begins with `prefix`, in no particular order, paginated inside."""
        ...

    def folders(self, pages: int | None = None) -> Iterator[str]:
        """The names of the folders directly under the store's prefix; of at most the first `pages` of the listing."""
        ...

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        """The bytes [start, stop) of `wanted`, in pieces of up to 256 KiB, of exactly the listed content.

        A body that ends early raises TransientError after the pieces that arrived.
        """
        ...

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        """The checksum to verify the content of `wanted` against; None without one. May make a request."""
        ...


def without_markers(listed: Mapping[str, StoredObject]) -> dict[str, StoredObject]:
    """Remove the empty objects that only make a folder visible; the marker of an otherwise empty folder stays."""
    folders = {path[: end + 1] for path in listed for end in range(len(path) - 1) if path[end] == "/"}
    return {
        path: stored
        for path, stored in listed.items()
        if not (path == "" or (path.endswith("/") and stored.size == 0 and path in folders))
    }
