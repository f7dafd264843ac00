"""Azure Blob Storage through azure-storage-blob and azure-identity; the only module that imports them.

The SDK reads no variables of the environment itself. This module reads those that Triton has (AZURE_STORAGE_ACCOUNT,
AZURE_STORAGE_KEY, AZURE_STORAGE_AUTH_TYPE, AZURE_STORAGE_CLIENT_ID), and AZURE_STORAGE_CONNECTION_STRING, which Azure's
own tools take: it can name another endpoint or have a shared access signature.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    IncompleteReadError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential, ManagedIdentityCredential
from azure.storage.blob import BlobPrefix, BlobProperties, BlobServiceClient, ContainerClient

from trident.core.errors import AccessRefused, RepositoryUnavailable
from trident.core.repository.location import AZURE_HOST, Location
from trident.core.repository.stores.object_store import (
    AzureCredential,
    Checksum,
    StorageAccess,
    StoredObject,
    TransientError,
    digest_checksum,
)

# A request is answered whole, and the storage computes an MD5 for ranges of up to 4 MiB.
_RANGE_BYTES = 4 << 20
_PIECE_BYTES = 256 << 10
# More than the downloader's connections; with a smaller pool, requests discards the connections that do not fit.
_POOL_SIZE = 64
# The downloader retries by itself.
_OPTIONS = {
    "retry_total": 0,
    "connection_timeout": 10,
    "read_timeout": 30,
    "max_single_get_size": _RANGE_BYTES,
    "max_chunk_get_size": _RANGE_BYTES,
}
_NO_ANSWER = (ServiceRequestError, ServiceResponseError, IncompleteReadError, DecodeError)
_TRANSIENT_STATUSES = (408, 429)
# 409: anonymous access to an account that does not permit it.
_REFUSALS = (401, 403, 409)
_GONE = (404, 412, 416)
_LISTING, _READING, _WRITING = "list blobs", "get blob", "put blob"
_FOLDER_MARK = "hdi_isfolder"  # metadata of the folders of an account with a hierarchical namespace


class AzureStore:
    """The ObjectStore of an `as://` location; `credential` replaces the variables of the environment.

    Making one does not ask the storage. Raises RepositoryUnavailable for a malformed credential.
    """

    def __init__(self, location: Location, credential: AzureCredential | None) -> None:
        self.location = location.text
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        if credential is None:
            names = ("ACCOUNT", "KEY", "AUTH_TYPE", "CLIENT_ID", "CONNECTION_STRING")  # in the order of the fields
            credential = AzureCredential(*(os.environ.get(f"AZURE_STORAGE_{name}", "") for name in names))
        session = requests.Session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_POOL_SIZE))
        options = {**_OPTIONS, "transport": RequestsTransport(session=session)}
        try:
            service, self._access = _service(location, credential, options)
            self._container: ContainerClient = service.get_container_client(location.bucket)
        except ValueError:
            # Not chained: the SDK's texts may quote a key.
            raise RepositoryUnavailable(
                f"the credential for {location.text} is malformed",
                hint="check AZURE_STORAGE_KEY, AZURE_STORAGE_CONNECTION_STRING or the section 'as' of the file",
            ) from None

    def access(self) -> StorageAccess:
        return self._access

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with self._failures_of(_LISTING, self.location):
            for blob in self._container.list_blobs(self._prefix + prefix, include=["metadata"]):
                yield self._stored(blob)

    def folders(self) -> Iterator[str]:
        with self._failures_of(_LISTING, self.location):
            found = self._container.walk_blobs(self._prefix, delimiter="/")
            names = (each.name.removeprefix(self._prefix) for each in found if isinstance(each, BlobPrefix))
            yield from filter(None, (name.rstrip("/") for name in names))

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        if start >= stop:
            return
        with self._failures_of(_READING, f"{self.location}/{wanted.key}"):
            body = self._container.download_blob(
                self._prefix + wanted.key,
                offset=start,
                length=stop - start,
                etag=wanted.tag,
                match_condition=MatchConditions.IfNotModified,
                # A blob that was uploaded in blocks may have no checksum of its whole content.
                validate_content=not wanted.digest,
            )
            for received in body.chunks():
                for first in range(0, len(received), _PIECE_BYTES):
                    yield received[first : first + _PIECE_BYTES]

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        """Return the MD5 that the uploading client stored; without one, ranges are verified as they are read."""
        return digest_checksum(wanted.digest)

    def put(self, key: str, content: bytes) -> None:
        with self._failures_of(_WRITING, f"{self.location}/{key}"):
            self._container.upload_blob(self._prefix + key, content, overwrite=True)

    def _stored(self, blob: BlobProperties) -> StoredObject:
        key = blob.name.removeprefix(self._prefix)
        if (blob.metadata or {}).get(_FOLDER_MARK) == "true":
            return StoredObject(f"{key}/", 0, blob.etag)
        md5 = blob.content_settings.content_md5
        return StoredObject(key, blob.size, blob.etag, f"md5:{bytes(md5).hex()}" if md5 else "")

    @contextmanager
    def _failures_of(self, call: str, target: str) -> Iterator[None]:
        """Turn the SDK's exceptions into RepositoryUnavailable or TransientError."""
        try:
            yield
        except AzureError as error:
            raise self.failure(error, call, target) from error

    def failure(self, error: AzureError, call: str, target: str) -> Exception:
        """Return RepositoryUnavailable or TransientError for an exception of the SDK."""
        status = error.status_code if isinstance(error, HttpResponseError) else None
        cause = str(getattr(error, "error_code", "") or getattr(error, "reason", "") or type(error).__name__)
        if isinstance(error, _NO_ANSWER) or (status and (status >= 500 or status in _TRANSIENT_STATUSES)):
            return TransientError(f"{call} on {target}: {cause}")
        if status in _REFUSALS:
            return AccessRefused(
                f"{call} on {target} was refused to {self._access.identity} (HTTP {status}, {cause})",
                hint="give a key, or grant the role 'Storage Blob Data "
                f"{'Contributor' if call == _WRITING else 'Reader'}' on the container",
            )
        if status in _GONE and call == _READING:
            return RepositoryUnavailable(f"{target} was changed or removed after it was listed")
        if status in _GONE:
            return RepositoryUnavailable(f"there is no container for {target} ({cause})")
        if isinstance(error, ClientAuthenticationError):
            # Without the error's text, which may quote the answer of a token endpoint.
            return RepositoryUnavailable(
                f"no access token for {self._access.identity}, needed for {call} on {target}",
                hint="check AZURE_STORAGE_AUTH_TYPE, AZURE_STORAGE_CLIENT_ID and the identity of this machine",
            )
        return RepositoryUnavailable(f"{call} on {target} failed: {cause}")


def _service(
    location: Location, credential: AzureCredential, options: dict[str, Any]
) -> tuple[BlobServiceClient, StorageAccess]:
    """Return the client and its access. Raises ValueError for a malformed credential."""
    if credential.connection_string:
        service = BlobServiceClient.from_connection_string(credential.connection_string, **options)
        return service, StorageAccess("the connection string", "AZURE_STORAGE_CONNECTION_STRING", service.url)
    account = credential.account_str or location.endpoint_url.removeprefix("https://").removesuffix(AZURE_HOST)
    url, given = f"https://{account}{AZURE_HOST}", credential.client_id or None
    match credential.auth_type:
        case "managed_identity":
            token: Any = ManagedIdentityCredential(client_id=given)
            access = StorageAccess(f"the managed identity {given or 'of the machine'}", "managed identity", url)
        case "default":
            token = DefaultAzureCredential(managed_identity_client_id=given)
            access = StorageAccess("the default credentials", "the default chain of azure-identity", url)
        case _ if credential.account_key:
            token = {"account_name": account, "account_key": credential.account_key}
            access = StorageAccess(f"the key of account '{account}'", "an account key", url)
        case _:
            token, access = None, StorageAccess("anonymous", "", url)
    return BlobServiceClient(url, credential=token, **options), access
