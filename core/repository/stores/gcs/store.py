"""A prefix of a bucket in Google Cloud Storage.

google-cloud-storage gives the endpoint and the credentials, google-auth a session that uses them and renews tokens; the
requests are made here. The SDK's own `list_blobs` starts a thread that asks for the bucket itself, a request more and a
permission that nobody else needs; its downloads can only push into a file, where a range is to be pulled piece by
piece, never held whole, and as the storage has it (an object with `Content-Encoding: gzip` stays compressed, so that
its size is the listed one).

Credentials are the default ones of the SDK (GOOGLE_APPLICATION_CREDENTIALS, the user of gcloud, the metadata server or
workload identity); where it finds none, and always where STORAGE_EMULATOR_HOST leads to an emulator, access is
anonymous. Without an emulator the SDK looks for a metadata server before it gives up, which may take some seconds.

Source: docs/spec/repository.md section 1.10; Cloud Storage's JSON API, `objects.list` and `objects.get`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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

from core.errors import RepositoryUnavailable
from core.repository.location import Location
from core.repository.stores.cloud_credentials import GcsCredential
from core.repository.stores.object_store import Checksum, StoredObject, TransientError

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_TIMEOUT_S = (10.0, 30.0)  # to connect, and between two arrivals of bytes
_PIECE_BYTES = 256 << 10
# More than the download engine has connections; with fewer, requests throws away what it cannot pool.
_POOL_SIZE = 64
# For a page of a listing; contents are asked for again by the download engine, from where they broke off.
_RETRY = DEFAULT_RETRY.with_timeout(2.0).with_delay(initial=0.1, maximum=1.0, multiplier=2.0)
_FAILURES = (api_errors.GoogleAPIError, auth_errors.GoogleAuthError, urllib3.exceptions.HTTPError, OSError)
_PASSING = (
    api_errors.RetryError,  # raised only after failures that the SDK itself holds for passing ones
    auth_errors.TransportError,
    urllib3.exceptions.HTTPError,
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.JSONDecodeError,  # something between here and the storage answered in its place
)
_PASSING_STATUSES = (408, 429)
_REFUSALS = (401, 403)
_CHANGED = (404, 412, 416)
_LONGEST_CAUSE = 300


class GcsStore:
    """The ObjectStore of a `gs://` location; `credential` takes the place of the SDK's default ones.

    Making one reads key files and may ask the metadata server, but not the storage. Raises RepositoryUnavailable for a
    key file that cannot be used, TransientError where credentials could not be fetched this time.
    """

    def __init__(self, location: Location, credential: GcsCredential | None) -> None:
        self.location = location.text
        self._bucket = location.bucket
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._account = _account(location, credential)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        fields = "items(name,size,generation,md5Hash),nextPageToken"
        for page in self._pages(prefix=self._prefix + prefix, fields=fields):
            for item in page.get("items", ()):
                if not item["name"].endswith("/"):  # a folder that a console made visible
                    yield self._stored(item)

    def folders(self) -> Iterator[str]:
        for page in self._pages(prefix=self._prefix, delimiter="/", fields="prefixes,nextPageToken"):
            names = (prefix.removeprefix(self._prefix).rstrip("/") for prefix in page.get("prefixes", ()))
            yield from filter(None, names)

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        if start >= stop:
            return
        call = self._getting(wanted)
        # A generation is one content for ever: with object versioning even one that has been overwritten since.
        query = {"alt": "media", "generation": wanted.tag}
        url = f"{self._account.endpoint}/download{self._object_path(wanted)}"
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "gzip"}
        with (
            self._account.failures_of(call),
            self._account.session.get(url, params=query, headers=headers, timeout=_TIMEOUT_S, stream=True) as response,
        ):
            _check_range(response, call, f"bytes {start}-{stop - 1}/{wanted.size}")
            yield from _pieces(response, call, stop - start)

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        """MD5 where the listing has it; else, as for composed objects, CRC32C, which takes a request."""
        if wanted.digest:
            return Checksum("md5", wanted.digest.removeprefix("md5:"), partial(hashlib.md5, usedforsecurity=False))
        query = {"generation": wanted.tag, "fields": "crc32c"}
        answer = self._ask(self._getting(wanted), self._object_path(wanted), query)
        value = _hex(answer.get("crc32c"), 4)
        return Checksum("crc32c", value, _Crc32c) if value else None

    def _pages(self, **query: str) -> Iterator[dict[str, Any]]:
        call = self._listing(query["prefix"])
        while True:
            page = self._ask(call, f"{self._bucket_path}/o", query)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _ask(self, call: _Call, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """An answer of the JSON API, asked for again in place where it fails for a moment."""
        with self._account.failures_of(call):
            answer: dict[str, Any] = _RETRY(self._ask_once)(path, query)
            return answer

    def _ask_once(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        url = self._account.endpoint + path
        response = self._account.session.get(url, params={**query, "prettyPrint": "false"}, timeout=_TIMEOUT_S)
        if not response.ok:
            said = response.content.decode("utf-8", "replace") or response.reason
            raise api_errors.from_http_status(response.status_code, said)
        answer: dict[str, Any] = response.json()
        return answer

    def _stored(self, item: Mapping[str, str]) -> StoredObject:
        digest = _hex(item.get("md5Hash"), 16)
        return StoredObject(
            key=item["name"].removeprefix(self._prefix),
            size=int(item["size"]),
            tag=item["generation"],
            digest=f"md5:{digest}" if digest else "",
        )

    @property
    def _bucket_path(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}"

    def _object_path(self, wanted: StoredObject) -> str:
        return f"{self._bucket_path}/o/{quote(self._prefix + wanted.key, safe='')}"

    def _listing(self, prefix: str) -> _Call:
        target = f"gs://{self._bucket}/{prefix}"
        return _Call("storage.objects.list", target, f"there is no bucket gs://{self._bucket}")

    def _getting(self, wanted: StoredObject) -> _Call:
        target = f"gs://{self._bucket}/{self._prefix}{wanted.key}"
        return _Call("storage.objects.get", target, f"{target} was changed or removed after it was listed")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call to the storage, as its failures name it. `name` is that of the permission too; `missing` says what a 404
    means."""

    name: str
    target: str
    missing: str


class _Account:
    """Whom the storage knows us as, and a session in that name.

    `key_file` is empty for the SDK's default credentials; `no_credentials` says why access is anonymous, where that is
    for want of them.
    """

    def __init__(self, client: Client, key_file: str = "", no_credentials: str = "") -> None:
        self.endpoint = client.api_endpoint
        self._credentials = client._credentials
        self._key_file = key_file
        self._no_credentials = no_credentials
        # Anonymous credentials would be "renewed" upon a 401, which fails, and leaves the answer open.
        self.session = requests.Session() if self._is_anonymous else AuthorizedSession(self._credentials)
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_POOL_SIZE))

    @property
    def _is_anonymous(self) -> bool:
        return isinstance(self._credentials, AnonymousCredentials)

    @property
    def identity(self) -> str:
        """An e-mail address where there is one. That of a metadata server's account is known after its first token."""
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

    @contextmanager
    def failures_of(self, call: _Call) -> Iterator[None]:
        """What the SDK and its transport raise becomes RepositoryUnavailable or TransientError."""
        try:
            yield
        except _FAILURES as error:
            raise self._failure(error, call) from error

    def _failure(self, error: Exception, call: _Call) -> Exception:
        if _passes(error):
            return TransientError(f"{call.name} on {call.target}: {_cause(error)}")
        status = error.code if isinstance(error, api_errors.GoogleAPICallError) else None
        if status in _REFUSALS:
            return self._refusal(call, status)
        if status in _CHANGED:
            return RepositoryUnavailable(call.missing)
        if isinstance(error, auth_errors.GoogleAuthError):
            # Without the error's own text, which may quote the answer of a token endpoint.
            return RepositoryUnavailable(
                f"no access token for {self.identity}, needed for {call.name} on {call.target}",
                hint="its key or login has expired or was revoked: renew it",
            )
        return RepositoryUnavailable(f"{call.name} on {call.target} failed: {_cause(error)}")

    def _refusal(self, call: _Call, status: int) -> RepositoryUnavailable:
        cure = "grant it the role roles/storage.objectViewer on the bucket"
        if self._no_credentials:
            cure = f"{self._no_credentials} Give credentials, or make the bucket public"
        return RepositoryUnavailable(
            f"{call.name} on {call.target} was refused to {self.identity} (HTTP {status}): "
            f"it needs the permission {call.name}",
            hint=cure,
        )


class _Crc32c:
    """CRC32C as a Hash: the package's own has a hexdigest of bytes."""

    def __init__(self) -> None:
        self._running = google_crc32c.Checksum()

    def update(self, content: bytes | memoryview, /) -> None:
        self._running.update(bytes(content))  # it takes nothing else

    def hexdigest(self) -> str:
        return str(self._running.digest().hex())


def _account(location: Location, credential: GcsCredential | None) -> _Account:
    # A project is needed for making buckets only; None keeps the SDK from looking for one.
    if credential is not None:
        return _Account(Client(project=None, credentials=_from_key_file(credential.key_file)), credential.key_file)
    try:
        return _Account(Client(project=None))
    except auth_errors.DefaultCredentialsError as error:
        return _Account(Client.create_anonymous_client(), no_credentials=_cause(error))
    except auth_errors.GoogleAuthError as error:
        if _passes(error):
            raise TransientError(f"no credentials for {location.text}: {_cause(error)}") from error
        raise RepositoryUnavailable(f"the default credentials cannot be used for {location.text}") from error


def _from_key_file(path: str) -> Any:
    """Raises RepositoryUnavailable with the path and nothing of the contents."""
    try:
        info = json.loads(Path(path).read_bytes())
        if info["type"] == "authorized_user":
            return user_account.Credentials.from_authorized_user_info(info, [_SCOPE])
        if info["type"] == "service_account":
            return service_account.Credentials.from_service_account_info(info, scopes=[_SCOPE])
    except OSError as error:
        raise RepositoryUnavailable(f"cannot read the key file {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, auth_errors.GoogleAuthError):
        # Without its cause: the exceptions of the parsers may hold the text.
        raise RepositoryUnavailable(f"the key file {path} is damaged or incomplete") from None
    raise RepositoryUnavailable(
        f"the key file {path} is of an unknown type", hint="give the file of a service_account or an authorized_user"
    )


def _check_range(response: requests.Response, call: _Call, expected: str) -> None:
    """Raises what `failures_of` understands, or RepositoryUnavailable where the answer is not the range of the object
    that was listed. `expected` is the Content-Range."""
    if response.status_code == 206:
        if response.headers.get("Content-Range") != expected:
            raise RepositoryUnavailable(call.missing)
    elif response.ok:
        raise RepositoryUnavailable(f"{call.name} on {call.target}: the storage does not answer with ranges")
    else:
        # The body is left alone: it has no limit, and what it says is known from the status.
        raise api_errors.from_http_status(response.status_code, response.reason or "")


def _pieces(response: requests.Response, call: _Call, length: int) -> Iterator[bytes]:
    left = length
    # `read1` hands out what has arrived: a connection that breaks costs nothing of what came before.
    while piece := response.raw.read1(_PIECE_BYTES, decode_content=False):
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise TransientError(f"{call.name} on {call.target}: {length - left} bytes instead of {length}")


def _passes(error: Exception) -> bool:
    if isinstance(error, _PASSING):
        return True
    if isinstance(error, api_errors.GoogleAPICallError):
        return error.code is not None and (error.code in _PASSING_STATUSES or error.code >= 500)
    if isinstance(error, auth_errors.GoogleAuthError):
        # A metadata server that did not answer is a RefreshError around the TransportError.
        return error.retryable or isinstance(error.__cause__, auth_errors.TransportError)
    return False


def _cause(error: Exception) -> str:
    """The error's text, on one line."""
    text = " ".join(str(error.cause if isinstance(error, api_errors.RetryError) else error).split())
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}…"


def _hex(encoded: str | None, size: int) -> str:
    """A checksum of the JSON API, in hex; empty where there is none, or none of `size` bytes."""
    try:
        value = base64.b64decode(encoded or "", validate=True)
    except binascii.Error:
        return ""
    return value.hex() if len(value) == size else ""
