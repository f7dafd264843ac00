"""Authenticated requests to Cloud Storage; the only module that imports Google's SDK.

google-cloud-storage supplies the endpoint and the credentials; google-auth supplies a session that uses them and renews
tokens. This module makes the requests itself. The SDK's `list_blobs` starts a thread that asks for the bucket, which
costs a request and needs a permission that nothing else here needs; only a variable of the environment turns it off.
Its downloads push into a file and accept an answer that ignores the range; a range has to be pulled piece by piece,
never held whole, and exactly as stored (an object with `Content-Encoding: gzip` stays compressed, so that its size is
the listed one).

The credentials are the SDK's default ones (GOOGLE_APPLICATION_CREDENTIALS, gcloud's user, the metadata server or
workload identity). Access is anonymous if the SDK finds none, and always if STORAGE_EMULATOR_HOST names an emulator.
Without an emulator the SDK looks for a metadata server before it gives up, which may take some seconds.

Source: docs/spec/repository.md section 1.10; Cloud Storage's JSON API, `objects.list` and `objects.get`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
import requests
import urllib3
from google.api_core import exceptions as api_errors
from google.auth import exceptions as auth_errors
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY
from google.oauth2 import credentials as user_account
from google.oauth2 import service_account

from trident.core.errors import AccessRefused, RepositoryUnavailable
from trident.core.repository.location import Location
from trident.core.repository.stores.object_store import (
    Checksum,
    GcsCredential,
    StorageAccess,
    StoredObject,
    TransientError,
    body_pieces,
    digest_checksum,
)

_MD5_BYTES = 16
_CRC32C_BYTES = 4


class Crc32c:
    """A running CRC32C with the interface of hashlib; the package's own class returns its hexdigest as bytes."""

    def __init__(self) -> None:
        self._running = google_crc32c.Checksum()

    def update(self, content: bytes | memoryview, /) -> None:
        self._running.update(bytes(content))  # it accepts only bytes

    def hexdigest(self) -> str:
        return str(self._running.digest().hex())


def crc32c_checksum(crc32c: str | None) -> Checksum | None:
    """Return the checksum in an object's `crc32c` field; None without a valid one."""
    value = _hex(crc32c, _CRC32C_BYTES)
    return Checksum("crc32c", value, Crc32c) if value else None


def _hex(encoded: str | None, size: int) -> str:
    """Return a base64 checksum in hex; empty if it is missing, malformed or not `size` bytes long."""
    try:
        value = base64.b64decode(encoded or "", validate=True)
    except binascii.Error:
        return ""
    return value.hex() if len(value) == size else ""


@dataclass(frozen=True, slots=True)
class GcsCall:
    """A call as its error messages name it.

    `name` is the API method, which is also the name of the permission that it needs. `target` is the URI that the call
    is about. `missing` is the message for a 404.
    """

    name: str
    target: str
    missing: str

    def __str__(self) -> str:
        return f"{self.name} on {self.target}"


_SCOPE = "https://www.googleapis.com/auth/devstorage."
_TIMEOUT_S = (10.0, 30.0)  # to connect, and between two reads
# More than the downloader's connections; with a smaller pool, requests discards the connections that do not fit.
_POOL_SIZE = 64
# Only for JSON answers; the downloader resumes a content where it broke off.
_RETRY = DEFAULT_RETRY.with_timeout(2.0).with_delay(initial=0.1, maximum=1.0, multiplier=2.0)
_FAILURES = (api_errors.GoogleAPIError, auth_errors.GoogleAuthError, urllib3.exceptions.HTTPError, OSError)
_TRANSIENT_ERRORS = (
    api_errors.RetryError,  # raised only after failures that the SDK itself considers transient
    auth_errors.TransportError,
    urllib3.exceptions.HTTPError,
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.JSONDecodeError,  # a proxy answered in place of the storage
)
_TRANSIENT_STATUSES = (408, 429)
_REFUSALS = (401, 403)
_GONE = (404, 412, 416)
_LONGEST_CAUSE = 300


def _from_key_file(path: str, writes: bool) -> Any:
    """Read the credentials in a key file. Raises RepositoryUnavailable, which names the path and quotes nothing."""
    scopes = [f"{_SCOPE}{'read_write' if writes else 'read_only'}"]
    try:
        info = json.loads(Path(path).read_bytes())
        if info["type"] == "authorized_user":
            return user_account.Credentials.from_authorized_user_info(info, scopes)
        if info["type"] == "service_account":
            return service_account.Credentials.from_service_account_info(info, scopes=scopes)
    except OSError as error:
        raise RepositoryUnavailable(f"cannot read the key file {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, auth_errors.GoogleAuthError):
        # Not chained: the exceptions of the parsers may contain the text.
        raise RepositoryUnavailable(f"the key file {path} is damaged or incomplete") from None
    raise RepositoryUnavailable(
        f"the key file {path} is of an unknown type", hint="give the file of a service_account or an authorized_user"
    )


def _is_transient(error: Exception) -> bool:
    if isinstance(error, _TRANSIENT_ERRORS):
        return True
    if isinstance(error, api_errors.GoogleAPICallError):
        return error.code is not None and (error.code in _TRANSIENT_STATUSES or error.code >= 500)
    if isinstance(error, auth_errors.GoogleAuthError):
        # A metadata server that did not answer is a RefreshError around the TransportError.
        return error.retryable or isinstance(error.__cause__, auth_errors.TransportError)
    return False


def _cause(error: Exception) -> str:
    """The error's text, on one line."""
    text = " ".join(str(error.cause if isinstance(error, api_errors.RetryError) else error).split())
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}…"


class GcsStore:
    """The ObjectStore of a `gs://` location; `credential` replaces the SDK's default credentials.

    `writes`: `put` is used. Making one reads key files and may ask the metadata server, but not the storage. Raises
    RepositoryUnavailable for an unusable key file, TransientError if credentials could not be fetched this time.
    """

    def __init__(self, location: Location, credential: GcsCredential | None, writes: bool = False) -> None:
        self.location = location.text
        self._bucket = location.bucket
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._key_file = credential.key_file if credential else ""
        self._writes = writes
        # The reason for anonymous access, if credentials are missing.
        self._no_credentials = ""
        client = self._sdk_client()
        self._endpoint = client.api_endpoint
        self._credentials = client._credentials
        # An AuthorizedSession would "renew" anonymous credentials after a 401, which fails and leaves the answer open.
        self._session = requests.Session() if self._is_anonymous else AuthorizedSession(self._credentials)
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_POOL_SIZE))

    @property
    def identity(self) -> str:
        """The requests' identity: an e-mail address if known. A metadata server's is known after its first token."""
        if self._is_anonymous:
            return "anonymous"
        email = getattr(self._credentials, "service_account_email", None)
        if email:
            return f"service account {email}"
        user = getattr(self._credentials, "account", None)
        if user:
            return f"user {user}"
        kind = "a user" if isinstance(self._credentials, user_account.Credentials) else "an external account"
        return f"{kind} of {self._key_file or 'the default credentials'}"

    def access(self) -> StorageAccess:
        credentials = "" if self._is_anonymous else type(self._credentials).__module__
        return StorageAccess(self.identity, credentials, self._endpoint)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        fields = "items(name,size,generation,md5Hash),nextPageToken"
        for page in self._pages(prefix=self._prefix + prefix, fields=fields):
            for item in page.get("items", ()):
                if not item["name"].endswith("/"):  # a marker that makes a folder visible in a console
                    md5 = _hex(item.get("md5Hash"), _MD5_BYTES)
                    yield StoredObject(
                        key=item["name"].removeprefix(self._prefix),
                        size=int(item["size"]),
                        tag=item["generation"],
                        digest=f"md5:{md5}" if md5 else "",
                    )

    def folders(self) -> Iterator[str]:
        for page in self._pages(prefix=self._prefix, delimiter="/", fields="prefixes,nextPageToken"):
            names = (prefix.removeprefix(self._prefix).rstrip("/") for prefix in page.get("prefixes", ()))
            yield from filter(None, names)

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        if start >= stop:
            return
        call, url = self._get_call(wanted), f"{self._endpoint}/download{self._object_path(wanted)}"
        # A generation never changes its content. With object versioning it stays readable after it is overwritten.
        query = {"alt": "media", "generation": wanted.tag}
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "gzip"}
        with (
            self._failures_of(call),
            self._session.get(url, params=query, headers=headers, timeout=_TIMEOUT_S, stream=True) as response,
        ):
            if not response.ok:
                # The body is not read: its length has no limit, and the status says enough.
                raise api_errors.from_http_status(response.status_code, response.reason or "")
            if response.status_code != 206:
                raise RepositoryUnavailable(f"{call}: the storage does not answer with ranges")
            if response.headers.get("Content-Range") != f"bytes {start}-{stop - 1}/{wanted.size}":
                raise RepositoryUnavailable(call.missing)
            yield from body_pieces(response.raw, stop - start, str(call))

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        """Return the MD5 if the listing had it; otherwise, as for composed objects, ask for the CRC32C."""
        if wanted.digest:
            return digest_checksum(wanted.digest)
        query = {"generation": wanted.tag, "fields": "crc32c"}
        return crc32c_checksum(self._ask(self._get_call(wanted), self._object_path(wanted), query).get("crc32c"))

    def put(self, key: str, content: bytes) -> None:
        target = f"gs://{self._bucket}/{self._prefix}{key}"
        call = GcsCall("storage.objects.create", target, f"there is no bucket gs://{self._bucket}")
        query = {"uploadType": "media", "name": self._prefix + key}
        headers = {"Content-Type": "application/octet-stream"}
        with (
            self._failures_of(call),
            self._session.post(
                f"{self._endpoint}/upload{self._bucket_path}/o",
                params=query,
                data=content,
                headers=headers,
                timeout=_TIMEOUT_S,
            ) as response,
        ):
            if not response.ok:
                raise api_errors.from_http_status(response.status_code, response.reason or "")

    @property
    def _is_anonymous(self) -> bool:
        return isinstance(self._credentials, AnonymousCredentials)

    def _sdk_client(self) -> Client:
        # Only making buckets needs a project; None keeps the SDK from looking for one.
        if self._key_file:
            return Client(project=None, credentials=_from_key_file(self._key_file, self._writes))
        try:
            return Client(project=None)
        except auth_errors.DefaultCredentialsError as error:
            self._no_credentials = _cause(error)
            return Client.create_anonymous_client()
        except auth_errors.GoogleAuthError as error:
            if _is_transient(error):
                raise TransientError(f"no credentials for {self.location}: {_cause(error)}") from error
            raise RepositoryUnavailable(f"the default credentials cannot be used for {self.location}") from error

    def _ask(self, call: GcsCall, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the JSON answer to a request, after a few retries. Raises RepositoryUnavailable, TransientError."""

        def ask_once() -> dict[str, Any]:
            response = self._session.get(
                self._endpoint + path, params={**query, "prettyPrint": "false"}, timeout=_TIMEOUT_S
            )
            if not response.ok:
                reason = response.content.decode("utf-8", "replace") or response.reason
                raise api_errors.from_http_status(response.status_code, reason)
            answer: dict[str, Any] = response.json()
            return answer

        with self._failures_of(call):
            found: dict[str, Any] = _RETRY(ask_once)()
            return found

    def _pages(self, **query: str) -> Iterator[dict[str, Any]]:
        target = f"gs://{self._bucket}/{query['prefix']}"
        call = GcsCall("storage.objects.list", target, f"there is no bucket gs://{self._bucket}")
        while True:
            page = self._ask(call, f"{self._bucket_path}/o", query)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    @property
    def _bucket_path(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}"

    def _object_path(self, wanted: StoredObject) -> str:
        return f"{self._bucket_path}/o/{quote(self._prefix + wanted.key, safe='')}"

    def _get_call(self, wanted: StoredObject) -> GcsCall:
        target = f"gs://{self._bucket}/{self._prefix}{wanted.key}"
        return GcsCall("storage.objects.get", target, f"{target} was changed or removed after it was listed")

    @contextmanager
    def _failures_of(self, call: GcsCall) -> Iterator[None]:
        """Turn exceptions of the SDK and its transport into RepositoryUnavailable or TransientError."""
        try:
            yield
        except _FAILURES as error:
            raise self._failure(error, call) from error

    def _failure(self, error: Exception, call: GcsCall) -> Exception:
        if _is_transient(error):
            return TransientError(f"{call}: {_cause(error)}")
        status = error.code if isinstance(error, api_errors.GoogleAPICallError) else None
        if status in _REFUSALS:
            role = "objectCreator" if self._writes else "objectViewer"
            hint = f"grant it the role roles/storage.{role} on the bucket"
            if self._no_credentials:
                hint = f"{self._no_credentials} Give credentials, or make the bucket public"
            return AccessRefused(
                f"{call} was refused to {self.identity} (HTTP {status}): it needs the permission {call.name}", hint=hint
            )
        if status in _GONE:
            return RepositoryUnavailable(call.missing)
        if isinstance(error, auth_errors.GoogleAuthError):
            # Without the error's text, which may quote the answer of a token endpoint.
            return RepositoryUnavailable(
                f"no access token for {self.identity}, needed for {call}",
                hint="its key or login has expired or was revoked: renew it",
            )
        return RepositoryUnavailable(f"{call} failed: {_cause(error)}")
