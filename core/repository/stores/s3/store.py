"""A prefix of a bucket in Amazon S3 or in a storage that speaks its protocol.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from core.errors import RepositoryUnavailable
from core.repository.location import Location
from core.repository.stores.access import StorageAccess
from core.repository.stores.cloud_credentials import S3Credential
from core.repository.stores.http_body import body_pieces
from core.repository.stores.object_store import Checksum, StoredObject
from core.repository.stores.s3.call import S3Call
from core.repository.stores.s3.checksums import content_digest, object_checksum
from core.repository.stores.s3.client import S3Client

_LISTING_FIELDS = frozenset({"Name", "KeyCount", "IsTruncated"})


class S3Store:
    """The ObjectStore of an `s3://` location; `credential` takes precedence over botocore's default chain.

    Making one does not ask the storage.
    """

    def __init__(self, location: Location, credential: S3Credential | None) -> None:
        self.location = location.text
        self._bucket = location.bucket
        self._root = f"{location.prefix}/" if location.prefix else ""
        self._client = S3Client(location, credential)
        self._opened = False

    def access(self) -> StorageAccess:
        """The access that this store has. Looks up the credentials; raises RepositoryUnavailable."""
        return self._client.access(self._call("s3:ListBucket"))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        root = self._root + prefix
        for page in self._pages(Prefix=root):
            for entry in page.get("Contents", ()):
                match entry:
                    case {"Key": str(key), "Size": int(size), "ETag": str(quoted)} if size >= 0 and quoted.strip('"'):
                        pass
                    case _:
                        raise RepositoryUnavailable(
                            f"{self.location} lists an object without its key, its size or its ETag",
                            hint="these tell which files a model has and when they change",
                        )
                if key.endswith("/") or not key.startswith(root):  # a marker that makes a folder visible in a console
                    continue
                etag = quoted.strip('"')
                yield StoredObject(key[len(self._root) :], size, etag, content_digest(self._bucket, etag))

    def folders(self, pages: int | None = None) -> Iterator[str]:
        for page in islice(self._pages(Prefix=self._root, Delimiter="/"), pages):
            for entry in page.get("CommonPrefixes", ()):
                name = entry.get("Prefix", "").removeprefix(self._root).removesuffix("/")
                if name:
                    yield name

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        call = self._call("s3:GetObject", wanted.key)
        asked = {"Range": f"bytes={start}-{stop - 1}"} if stop > start else {}
        answer = self._client.ask(call, "get_object", IfMatch=f'"{wanted.tag}"', **asked)
        body = answer["Body"]
        try:
            _check_range(call, answer, wanted, start, stop)
            yield from body_pieces(body._raw_stream, stop - start, call.target)
        finally:
            body.close()

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        call = self._call("s3:GetObject", wanted.key)
        head = self._client.ask(call, "head_object", IfMatch=f'"{wanted.tag}"', ChecksumMode="ENABLED")

        def part_length(number: int) -> int:
            try:
                part = self._client.ask(call, "head_object", PartNumber=number)
            except RepositoryUnavailable:  # some storages do not know part numbers
                return 0
            length = part.get("ContentLength", 0)
            return length if isinstance(length, int) else 0

        return object_checksum(head, self._bucket, wanted.tag, wanted.size, part_length)

    def _call(self, action: str, key: str = "") -> S3Call:
        opening = not key and not self._opened
        if not key:
            return S3Call(action, self.location, self._bucket, opening=opening)
        return S3Call(action, f"{self.location}/{key}", self._bucket, self._root + key)

    def _pages(self, **query: str) -> Iterator[dict[str, Any]]:
        token: str | None = None
        while True:
            more = {"ContinuationToken": token} if token else {}
            call = self._call("s3:ListBucket")
            page = self._client.ask(call, "list_objects_v2", **query, **more)
            if not page.keys() & _LISTING_FIELDS:  # otherwise any XML page would count as an empty repository
                raise call.answered_by_another()
            self._opened = True
            yield page
            if not page.get("IsTruncated"):
                return
            last, token = token, page.get("NextContinuationToken")
            if not token or token == last:
                raise RepositoryUnavailable(f"{self.location} gives a listing that never ends")


def _check_range(call: S3Call, answer: dict[str, Any], wanted: StoredObject, start: int, stop: int) -> None:
    """Raise RepositoryUnavailable if the answer has other bytes than the requested ones."""
    if stop <= start:
        return
    served = answer.get("ContentRange")
    whole = served is None and start == 0 and answer.get("ContentLength") == stop
    if not whole and served != f"bytes {start}-{stop - 1}/{wanted.size}":
        raise RepositoryUnavailable(
            f"{call.target}: asked for bytes {start}-{stop - 1} of {wanted.size}, received '{served}'",
            hint="the endpoint, or a proxy in front of it, must serve ranges",
        )
