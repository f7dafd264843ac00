"""What the download engine asks of an object store. One module per storage implements it; a third storage is one file.

    ObjectStore     the protocol
    ├── S3Store        boto3 (core/repository/stores/s3/store.py)
    └── GcsStore       google-cloud-storage (core/repository/stores/gcs/store.py)

Every method blocks on the network. The SDKs are imported by the modules above when the first store is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


class Hash(Protocol):
    """A running checksum, as hashlib makes them."""

    def update(self, content: bytes | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Checksum:
    """What the storage says of an object's content. `make` starts a hash of that kind; `value` is its hexdigest.

    `part_size` is 0 where the hash is over the whole content. Otherwise each part of that many bytes (the last may be
    shorter) is hashed apart, and `value` is the hash of the parts' digests, in hex (a multi-part etag of S3).
    """

    name: str
    value: str
    make: Callable[[], Hash]
    part_size: int = 0


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a listing. `key` is relative to the store's prefix; `size` in bytes.

    `tag` (etag or generation) is different whenever the content is. `digest` names the content itself, the same under
    any key of any store, as `md5:<hex>`; empty where the listing has no checksum that is one of the whole content.
    """

    key: str
    size: int
    tag: str
    digest: str = ""


class TransientError(Exception):
    """The storage failed in a way that may pass: a connection lost, a body cut short, a 5xx, throttling. Try again."""


class ObjectStore(Protocol):
    """All objects under one prefix of one bucket; any thread, several at once.

    Every method raises TransientError for what may pass (after the SDK's own few attempts), and RepositoryUnavailable
    for what will not: no such bucket, access refused (the message names the identity, the call, the object and the
    permission that is needed; never a secret), or the object is gone or has another tag than the one listed.
    """

    location: str

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """All objects whose key begins with `prefix`, in no particular order, paginated inside."""
        ...

    def folders(self) -> Iterator[str]:
        """The first path components that are followed by `/`: the names right under the store's prefix."""
        ...

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        """The bytes [start, stop) of `wanted`, in pieces of up to 256 KiB, of exactly the content that was listed.

        A body that ends early raises TransientError after the pieces that came.
        """
        ...

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        """What the content of `wanted` can be checked against; None where the storage gives nothing. May ask it."""
        ...
