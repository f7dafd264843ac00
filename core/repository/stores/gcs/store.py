"""A prefix of a bucket in Google Cloud Storage.

Source: docs/spec/repository.md section 1.10; Cloud Storage's JSON API, `objects.list` and `objects.get`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

from core.repository.location import Location
from core.repository.stores.access import StorageAccess
from core.repository.stores.cloud_credentials import GcsCredential
from core.repository.stores.gcs.call import GcsCall
from core.repository.stores.gcs.checksums import content_digest, crc32c_checksum, md5_checksum
from core.repository.stores.gcs.client import GcsClient
from core.repository.stores.object_store import Checksum, StoredObject


class GcsStore:
    """The ObjectStore of a `gs://` location; `credential` replaces the SDK's default credentials.

    Making one does not ask the storage. Raises what GcsClient raises.
    """

    def __init__(self, location: Location, credential: GcsCredential | None) -> None:
        self.location = location.text
        self._bucket = location.bucket
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._client = GcsClient(location, credential)

    def access(self) -> StorageAccess:
        """The access that this store has."""
        return self._client.access()

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        fields = "items(name,size,generation,md5Hash),nextPageToken"
        for page in self._pages(prefix=self._prefix + prefix, fields=fields):
            for item in page.get("items", ()):
                if not item["name"].endswith("/"):  # a marker that makes a folder visible in a console
                    yield self._stored(item)

    def folders(self, pages: int | None = None) -> Iterator[str]:
        listing = self._pages(prefix=self._prefix, delimiter="/", fields="prefixes,nextPageToken")
        for page in islice(listing, pages):
            names = (prefix.removeprefix(self._prefix).rstrip("/") for prefix in page.get("prefixes", ()))
            yield from filter(None, names)

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        if start >= stop:
            return
        # A generation never changes its content. With object versioning it stays readable after it is overwritten.
        query = {"alt": "media", "generation": wanted.tag}
        path = f"/download{self._object_path(wanted)}"
        yield from self._client.read(self._get_call(wanted), path, query, start, stop, wanted.size)

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        """The MD5 if the listing had it; otherwise, as for composed objects, the CRC32C, which takes a request."""
        if wanted.digest:
            return md5_checksum(wanted.digest)
        query = {"generation": wanted.tag, "fields": "crc32c"}
        answer = self._client.ask(self._get_call(wanted), self._object_path(wanted), query)
        return crc32c_checksum(answer.get("crc32c"))

    def _pages(self, **query: str) -> Iterator[dict[str, Any]]:
        call = self._list_call(query["prefix"])
        while True:
            page = self._client.ask(call, f"{self._bucket_path}/o", query)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _stored(self, item: Mapping[str, str]) -> StoredObject:
        return StoredObject(
            key=item["name"].removeprefix(self._prefix),
            size=int(item["size"]),
            tag=item["generation"],
            digest=content_digest(item.get("md5Hash")),
        )

    @property
    def _bucket_path(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}"

    def _object_path(self, wanted: StoredObject) -> str:
        return f"{self._bucket_path}/o/{quote(self._prefix + wanted.key, safe='')}"

    def _list_call(self, prefix: str) -> GcsCall:
        target = f"gs://{self._bucket}/{prefix}"
        return GcsCall("storage.objects.list", target, f"there is no bucket gs://{self._bucket}")

    def _get_call(self, wanted: StoredObject) -> GcsCall:
        target = f"gs://{self._bucket}/{self._prefix}{wanted.key}"
        return GcsCall("storage.objects.get", target, f"{target} was changed or removed after it was listed")
