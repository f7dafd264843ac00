"""The protocol between the downloader and an object store. One module per storage implements it.

    ObjectStore     the protocol
    ├── S3Store        boto3
    ├── GcsStore       google-cloud-storage
    └── AzureStore     azure-storage-blob

Every method blocks on the network. The source opener imports a storage's module, and with it the SDK, when it makes the
first store of that storage.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from trident.core.errors import ConfigInvalid, RepositoryUnavailable, ServerError
from trident.core.repository.location import Location, Scheme, uri_prefix

if TYPE_CHECKING:
    from urllib3.response import HTTPResponse


class RegionOrigin(Enum):
    """The source of the region of a storage's client."""

    CREDENTIAL_FILE = "credential file"
    CONFIGURATION = "configuration"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class StorageAccess:
    """The access of one store. It has no secret, so it may be shown.

    `identity` is its name in error messages. `credentials` names their origin in the words of the storage's SDK:
    boto3's `method`, the module of Google's credentials, empty for anonymous access. `endpoint` is a URL. `region`
    is empty for a storage without regions.
    """

    identity: str
    credentials: str
    endpoint: str
    region: str = ""
    region_origin: RegionOrigin = RegionOrigin.DEFAULT


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


# Hashes that identify a content; a CRC does not.
_NAMING = frozenset({"md5", "sha1", "sha256", "sha384", "sha512"})


def digest_checksum(digest: str) -> Checksum | None:
    """Return the Checksum of a digest such as `md5:<hex>`; None for one that does not identify a content."""
    name, _, value = digest.partition(":")
    if name not in _NAMING or not value:
        return None
    # Not for security: an interpreter in FIPS mode would refuse MD5 otherwise.
    return Checksum(name, value.lower(), partial(hashlib.new, name, usedforsecurity=False))


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

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly under the store's prefix."""
        ...

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of `wanted`, in pieces of up to 256 KiB, of exactly the listed content.

        A body that ends early raises TransientError after the pieces that arrived.
        """
        ...

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        """The checksum to verify the content of `wanted` against; None without one. May make a request."""
        ...

    def put(self, key: str, content: bytes) -> None:
        """Store `content` as the object `key`, relative to the store's prefix."""
        ...


def without_markers(listed: Mapping[str, StoredObject]) -> dict[str, StoredObject]:
    """Remove the empty objects that only make a folder visible; the marker of an otherwise empty folder stays."""
    folders = {path[: end + 1] for path in listed for end in range(len(path) - 1) if path[end] == "/"}
    return {
        path: stored
        for path, stored in listed.items()
        if not (path == "" or (path.endswith("/") and stored.size == 0 and path in folders))
    }


_PIECE_BYTES = 256 << 10


def body_pieces(response: HTTPResponse, length: int, target: str) -> Iterator[bytes]:
    """Yield `length` bytes of the body of `response` in pieces of up to 256 KiB, exactly as they are stored.

    Raises TransientError, after the pieces that arrived, for a body that ends or breaks off early, or goes on; `target`
    names it. A body that was read to its end leaves its connection for the next request.
    """
    from urllib3.exceptions import HTTPError  # for servers with an object store only

    if not length:  # the answer may be the whole object
        return
    left = length
    try:
        while left:
            # `read1` returns what has arrived, so a connection that breaks loses nothing of what it delivered before.
            piece = response.read1(min(left, _PIECE_BYTES), decode_content=False)
            if not piece:
                raise TransientError(f"{target} ended {left} bytes too early")
            left -= len(piece)
            yield piece
        if response.read1(1, decode_content=False):
            raise TransientError(f"{target} has more than the {length} bytes that were asked for")
    except (OSError, HTTPError) as error:
        raise TransientError(f"{target} broke off {left} bytes before its end: {type(error).__name__}") from None


_LONGEST = 255


def name_problem(name: str) -> str | None:
    """Say why `name` cannot name a file or a folder; None if it can. A backslash is an ordinary character."""
    if not name:
        return "an empty name"
    if name in (os.curdir, os.pardir):
        return f"the name '{name}'"
    if "/" in name or "\0" in name:
        return "a name with a slash or a NUL"
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return "a name that this file system cannot encode"
    return f"a name of more than {_LONGEST} bytes" if len(encoded) > _LONGEST else None


def paths_problem(paths: Collection[str]) -> str | None:
    """Say why `paths` cannot be the files of one folder; None if they can. A path that ends with `/` is a folder.

    An absolute path begins with an empty name.
    """
    files = {path for path in paths if not path.endswith("/")}
    for path in paths:
        problem = next(filter(None, map(name_problem, path.removesuffix("/").split("/"))), None)
        if problem:
            return f"'{path}' has {problem}"
        components = path.split("/")
        for depth in range(1, len(components)):
            folder = "/".join(components[:depth])
            if folder in files:
                return f"'{folder}' is both a file and the folder of '{path}'"
    return None


# Source: docs/spec/repository.md section 1.10 ("on failure the file is re-read once").


_C = TypeVar("_C")


class RenewedStore(Generic[_C]):
    """The ObjectStore that `make` makes from the credential that `read` returns; made at its first use.

    After each failure it reads the credential again. If that has changed, the failure becomes a TransientError: the
    caller retries, and a new store answers. A file that has become unreadable changes nothing.
    """

    def __init__(self, location: str, read: Callable[[], _C], make: Callable[[_C], ObjectStore]) -> None:
        """Raises what `read` raises. The methods raise what `make` raises."""
        self.location = location
        self._read = read
        self._make = make
        self._lock = threading.Lock()
        self._credential = read()
        self._store: ObjectStore | None = None

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with self._renewing() as store:
            yield from store.list(prefix)

    def folders(self) -> Iterator[str]:
        with self._renewing() as store:
            yield from store.folders()

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        with self._renewing() as store:
            yield from store.read(wanted, start, stop)

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        with self._renewing() as store:
            return store.checksum(wanted)

    def put(self, key: str, content: bytes) -> None:
        with self._renewing() as store:
            store.put(key, content)

    @contextmanager
    def _renewing(self) -> Iterator[ObjectStore]:
        store = None
        try:
            store = self._current()
            yield store
        except RepositoryUnavailable:
            self._renew(store)
            raise

    def _current(self) -> ObjectStore:
        with self._lock:
            if self._store is None:
                self._store = self._make(self._credential)
            return self._store

    def _renew(self, store: ObjectStore | None) -> None:
        """Handle a failure of `store` or of making it. Raises TransientError if the credential has changed."""
        with self._lock:
            if self._store is store:
                try:
                    credential = self._read()
                except ServerError:
                    return
                if credential == self._credential:
                    return
                self._credential, self._store = credential, None
        raise TransientError(f"{self.location}: the credential file has changed")


#         {"s3": {"": {"key_id": "…", "secret_key": "…", "session_token": "…", "region": "…", "profile": "…"},
#                         "s3://bucket": {"profile": "…"}},
#           "gs": {"": "KEYFILE", "gs://bucket": "KEYFILE"},
#           "as": {"": {"account_str": "…", "account_key": "…", "auth_type": "…", "client_id": "…"}}}
#
# The keys are prefixes of repository URIs: the longest match wins, and "" matches all. Every string may be empty or
# missing.
#
# Source: docs/spec/repository.md section 1.10.


_LARGEST_FILE = 1 << 20
_MEMBERS = {
    "s3": ("key_id", "secret_key", "session_token", "region", "profile"),
    "as": ("account_str", "account_key", "auth_type", "client_id"),
}
_AZURE_AUTH_TYPES = ("", "key", "managed_identity", "default")
_HINT = "TRITON_CLOUD_CREDENTIAL_PATH names a JSON file with an object for each of the sections 's3', 'gs' and 'as'"


@dataclass(frozen=True, slots=True, repr=False)
class S3Credential:
    """A key, a profile of the AWS configuration, or the default chain if both are empty; each with a `region`."""

    key_id: str = ""
    secret_key: str = ""
    session_token: str = ""
    region: str = ""
    profile: str = ""

    def __repr__(self) -> str:
        key = f"…{self.key_id[-4:]}" if self.key_id else ""
        return f"S3Credential(key_id={key!r}, region={self.region!r}, profile={self.profile!r})"


@dataclass(frozen=True, slots=True)
class GcsCredential:
    """The path of a service account's or an authorized user's JSON file."""

    key_file: str


@dataclass(frozen=True, slots=True, repr=False)
class AzureCredential:
    """A key, or with `auth_type` `managed_identity` or `default` a token, perhaps for `client_id`; otherwise nothing.

    `account_str` replaces the account of the URI, and a `connection_string` all others.
    """

    account_str: str = ""
    account_key: str = ""
    auth_type: str = ""
    client_id: str = ""
    connection_string: str = ""

    def __repr__(self) -> str:
        return f"AzureCredential(account_str={self.account_str!r}, auth_type={self.auth_type!r})"


CloudCredential = S3Credential | GcsCredential | AzureCredential


@dataclass(frozen=True, slots=True)
class CloudCredentials:
    """The entries of the file, by URI prefix. A storage without entries uses its SDK's default chain."""

    s3: Mapping[str, S3Credential] = field(default_factory=dict)
    gs: Mapping[str, GcsCredential] = field(default_factory=dict)
    azure: Mapping[str, AzureCredential] = field(default_factory=dict)

    def credentials_for(self, location: Location) -> CloudCredential | None:
        """Return the entry with the longest prefix of `location`; None for the default chain.

        Raises RepositoryUnavailable if the file has entries for this storage but none matches.
        """
        by_scheme: dict[Scheme, Mapping[str, CloudCredential]] = {
            Scheme.S3: self.s3,
            Scheme.GS: self.gs,
            Scheme.AS: self.azure,
        }
        entries = by_scheme.get(location.scheme, {})
        if not entries:
            return None
        matches = [prefix for prefix in entries if f"{location.text}/".startswith(prefix)]
        if not matches:
            raise RepositoryUnavailable(
                f"Cannot match credential for path  {location.text}",
                hint=f"add an entry for it or for \"\" to section '{location.scheme.value}' of the credential file",
            )
        credential = entries[max(matches, key=len)]
        return None if credential == GcsCredential("") else credential


def read_cloud_credentials(path: str) -> CloudCredentials:
    """Read the file at `path`; an empty path gives no entries. Sections of other storages are ignored.

    Raises ConfigInvalid for an unreadable or malformed file; the message contains nothing of the file's contents.
    """
    if not path:
        return CloudCredentials()
    root = _parsed(path)
    if not isinstance(root, dict):
        raise ConfigInvalid(f"the credential file {path} is not a JSON object", hint=_HINT)
    return CloudCredentials(
        **{
            field: {prefix: _credential(name, entry, where) for prefix, entry, where in _entries(path, root, name)}
            for name, field in (("s3", "s3"), ("gs", "gs"), ("as", "azure"))
        }
    )


def _parsed(path: str) -> object:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigInvalid(f"cannot read the credential file {path}: {error.strerror}", hint=_HINT) from error
    if len(content) > _LARGEST_FILE:
        raise ConfigInvalid(f"the credential file {path} has more than {_LARGEST_FILE} bytes", hint=_HINT)
    # Neither is chained: the exceptions of the parser hold the whole text.
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigInvalid(f"the credential file {path} is not JSON ({where})", hint=_HINT) from None
    except (UnicodeDecodeError, RecursionError):
        raise ConfigInvalid(f"the credential file {path} is not JSON", hint=_HINT) from None


def _entries(path: str, root: Mapping[str, object], name: str) -> Iterator[tuple[str, object, str]]:
    """Yield the entries of a section by the prefixes of their URIs, each with its position in the file."""
    section = root.get(name, {})
    if not isinstance(section, dict):
        raise ConfigInvalid(f"section '{name}' of the credential file {path} is not an object", hint=_HINT)
    for index, (prefix, entry) in enumerate(section.items(), 1):
        yield uri_prefix(prefix), entry, f"entry {index} of section '{name}' of the credential file {path}"


def _credential(section: str, entry: object, where: str) -> Any:
    if section == "gs":
        if not isinstance(entry, str):
            raise ConfigInvalid(f"{where} is not a string", hint="it must be the path of a key file")
        return GcsCredential(entry)
    if not isinstance(entry, dict):
        raise ConfigInvalid(f"{where} is not an object", hint=_HINT)
    names = _MEMBERS[section]
    wrong = [name for name in names if not isinstance(entry.get(name, ""), str)]
    if wrong:
        raise ConfigInvalid(f"{where}: '{wrong[0]}' is not a string", hint=_HINT)
    texts = {name: entry[name] for name in names if name in entry}
    if section == "as":
        if texts.get("auth_type", "") not in _AZURE_AUTH_TYPES:
            known = ", ".join(filter(None, _AZURE_AUTH_TYPES))
            raise ConfigInvalid(f"{where}: 'auth_type' must be one of {known}", hint=_HINT)
        return AzureCredential(**texts)
    if bool(texts.get("key_id")) != bool(texts.get("secret_key")):
        given, missing = ("key_id", "secret_key") if texts.get("key_id") else ("secret_key", "key_id")
        raise ConfigInvalid(f"{where} has '{given}' but no '{missing}'", hint="a key consists of both")
    return S3Credential(**texts)
