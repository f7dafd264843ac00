"""Reads a cloud storage as a server would: its credentials, a listing, the head and the first byte of an object."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from app.commands.doctor.access_lines import CallReading, StorageReading
from core.errors import AccessRefused, ServerError
from core.repository.location import Location, Scheme
from core.repository.sources.cloud_opener import open_store
from core.repository.stores.cloud_credentials import read_cloud_credentials
from core.repository.stores.object_store import StoredObject, TransientError

if TYPE_CHECKING:
    from core.repository.stores.gcs.store import GcsStore
    from core.repository.stores.s3.store import S3Store

_TIMEOUT_S = 10.0
_LISTING = {Scheme.S3: ("ListObjectsV2", "s3:ListBucket"), Scheme.GS: ("objects.list", "storage.objects.list")}
_READING = {Scheme.S3: ("GetObject", "s3:GetObject"), Scheme.GS: ("objects.get", "storage.objects.get")}
_HEAD = ("HeadObject", "s3:GetObject")


def read_storage(location: Location, credential_path: str, environ: Mapping[str, str]) -> StorageReading:
    """Make each call once. Takes seconds if the storage or a metadata server does not answer. For cloud locations."""
    try:
        store = open_store(location, read_cloud_credentials(credential_path).credentials_for(location))
        store.access()
    except (ServerError, TransientError) as error:
        return StorageReading(location, None, *_texts(error))
    found: list[StoredObject] = []
    calls = list(_calls(location, store, found))
    # After the calls: a metadata server's identity is known after its first token.
    access = store.access()
    try:
        skew, unknown = clock_skew(access.endpoint, environ.get("AWS_CA_BUNDLE", "")), ""
    except (OSError, ValueError) as error:
        skew, unknown = None, str(getattr(error, "reason", error))
    folders = frozenset(stored.key.partition("/")[0] for stored in found if "/" in stored.key)
    return StorageReading(location, access, calls=calls, folders=folders, skew_s=skew, skew_unknown=unknown)


def clock_skew(endpoint: str, ca_file: str = "", now: Callable[[], float] = time.time) -> float:
    """The local time minus the one in the Date header of `endpoint`, in seconds. Raises OSError, ValueError."""
    context = ssl.create_default_context(cafile=ca_file or None)
    opener = build_opener(_NoRedirect, HTTPSHandler(context=context))
    try:
        with opener.open(Request(endpoint, method="HEAD"), timeout=_TIMEOUT_S) as answer:
            date = answer.headers.get("Date", "")
    except HTTPError as error:  # any answer has the time
        with error:
            date = error.headers.get("Date", "")
    if not date:
        raise ValueError("the answer has no Date header")
    return now() - parsedate_to_datetime(date).timestamp()


class _NoRedirect(HTTPRedirectHandler):
    """Amazon redirects the root of S3 to a page for people."""

    def redirect_request(self, *arguments: object, **named: object) -> None:
        return None


def _calls(location: Location, store: S3Store | GcsStore, found: list[StoredObject]) -> Iterator[CallReading]:
    """Lists the objects into `found`, and reads the smallest one that is not empty."""
    yield _call(*_LISTING[location.scheme], location.text, lambda: found.extend(store.list()))
    stored = min((each for each in found if each.size), key=lambda each: each.size, default=None)
    if stored is None:
        return
    target = f"{location.text}/{stored.key}"
    if location.scheme is Scheme.S3:
        yield _call(*_HEAD, target, lambda: store.checksum(stored))
    yield _call(*_READING[location.scheme], target, lambda: list(store.read(stored, 0, 1)))


def _call(name: str, permission: str, target: str, make: Callable[[], object]) -> CallReading:
    try:
        make()
    except (ServerError, TransientError) as error:
        return CallReading(name, permission, target, *_texts(error), refused=isinstance(error, AccessRefused))
    return CallReading(name, permission, target)


def _texts(error: ServerError | TransientError) -> tuple[str, str]:
    """The message and the hint."""
    if isinstance(error, ServerError):
        return error.message, error.hint or ""
    return f"no answer: {error}", "check the endpoint, the network and the proxy; run this again"
