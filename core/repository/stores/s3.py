"""Requests to Amazon S3 and to storages that speak its protocol, through boto3; the only module that imports it.

boto3's default chain decides about identity, permissions and endpoint (AWS_PROFILE, AWS_ENDPOINT_URL_S3, roles, web
identity, addressing styles). Only the repository's URI and the credential file take precedence over it. With a custom
endpoint boto3 writes the bucket into the path, unless the AWS configuration asks for the virtual style.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import boto3.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    PaginationError,
)
from botocore.parsers import ResponseParserError

from trident.core.errors import AccessRefused, RepositoryUnavailable
from trident.core.repository.location import Location
from trident.core.repository.stores.object_store import (
    Checksum,
    Hash,
    RegionOrigin,
    S3Credential,
    StorageAccess,
    StoredObject,
    TransientError,
    body_pieces,
)

_PLAIN_ETAG = re.compile(r"[0-9a-f]{32}")
_PARTS_ETAG = re.compile(r"([0-9a-f]{32})-([0-9]{1,5})")
_DIRECTORY_BUCKET = "--x-s3"


class Crc32:
    """zlib's CRC-32 with the interface of hashlib; its digest is big-endian, as S3 writes it."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, content: bytes | memoryview, /) -> None:
        self._value = zlib.crc32(content, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _md5() -> Hash:
    # Not for security: an interpreter in FIPS mode would refuse it otherwise.
    return hashlib.md5(usedforsecurity=False)


# The best first. CRC32C and CRC64NVME are left out because no installed package computes them.
_ALGORITHMS: tuple[tuple[str, Callable[[], Hash]], ...] = (
    ("SHA256", hashlib.sha256),
    ("SHA1", hashlib.sha1),
    ("CRC32", Crc32),
)


def content_digest(bucket: str, etag: str) -> str:
    """`md5:<hex>` for an etag in the form of an MD5, else empty.

    The etag of an object encrypted by KMS or a customer's key is not its MD5 but is still unique to each upload, so it
    can identify the content. Directory buckets do not guarantee that.
    """
    plain = _PLAIN_ETAG.fullmatch(etag) and not bucket.endswith(_DIRECTORY_BUCKET)
    return f"md5:{etag}" if plain else ""


def object_checksum(
    head: Mapping[str, object], bucket: str, etag: str, size: int, part_length: Callable[[int], int]
) -> Checksum | None:
    """Return the best checksum of an object of `size` bytes with `etag`; None if none can be computed.

    `head` is the answer to HeadObject with ChecksumMode. `part_length(n)` asks for the length of part n in bytes,
    counted from 1; it returns 0 if the storage does not tell.
    """
    # Other encryption makes the etag differ from the MD5 of the content.
    hides_md5 = head.get("ServerSideEncryption") not in (None, "AES256") or bool(head.get("SSECustomerAlgorithm"))
    if not bucket.endswith(_DIRECTORY_BUCKET) and not hides_md5:
        if _PLAIN_ETAG.fullmatch(etag):
            return Checksum("MD5", etag, _md5)
        # A single part is not accepted: MinIO without strict compatibility makes up such etags.
        parts = _PARTS_ETAG.fullmatch(etag)
        part_size = _part_size(size, int(parts[2]), part_length) if parts and int(parts[2]) > 1 else 0
        if parts and part_size:
            return Checksum("MD5 of the parts' MD5", parts[1], _md5, part_size)
    if head.get("ChecksumType") == "COMPOSITE":
        return None
    for name, make in _ALGORITHMS:  # of the whole content, as stored at the upload
        stated = head.get(f"Checksum{name}")
        if isinstance(stated, str):
            with suppress(binascii.Error):
                value = base64.b64decode(stated, validate=True).hex()
                if len(value) == len(make().hexdigest()):
                    return Checksum(name, value, make)
    return None


def _part_size(size: int, count: int, part_length: Callable[[int], int]) -> int:
    """Return the size of each part except the last, in bytes; 0 if it is unknown or differs between parts."""
    first = part_length(1)
    last = size - (count - 1) * first
    if not 0 < last <= first:
        return 0
    # With three or more parts the first does not determine the others: the uploader may choose any sizes.
    return first if count == 2 or part_length(count) == last else 0


_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_LONGEST_MESSAGE = 500
_MASK = "[secret]"

# Triton's text when it cannot open the bucket. Source: docs/spec/repository.md section 1.10.
_NO_CLIENT = "Unable to create S3 filesystem client. Check account credentials."
_NO_BUCKET = "NoSuchBucket"
# The ends of boto3's names for a storage that cannot be reached.
_UNREACHABLE = ("ConnectionError", "TimeoutError", "ConnectionClosedError", "SSLError")
_NO_STORAGE = "the storage cannot be reached: check the endpoint with its port and http(s), the network and the proxy"


@dataclass(frozen=True, slots=True)
class S3Call:
    """A call as its error messages name it.

    `action` is the name of the permission. `shown` is the URI for a reader. `key` is the whole key, empty for a call on
    the bucket itself. `opening` marks the first listing of the bucket: its refusal begins with Triton's text.
    """

    action: str
    shown: str
    bucket: str
    key: str = ""
    opening: bool = False

    @property
    def target(self) -> str:
        """The URI on one line; keys may contain line ends."""
        return _one_line(self.shown)

    @property
    def permission(self) -> str:
        """The statement that a policy must allow."""
        return _one_line(f"{self.action} on arn:aws:s3:::{self.bucket}{'/' + self.key if self.key else ''}")

    def failed(self, identity: str, exception: str, message: str) -> RepositoryUnavailable:
        """Return the error for a failure that `exception` and `message` describe, both without secrets (`safe_text`).

        Triton's text, which blames the credentials, is only for refusals.
        """
        text = f"{self.action} on {self.target} as {identity} failed. Exception: '{exception}' Message: '{message}'"
        if exception == _NO_BUCKET:
            return RepositoryUnavailable(
                f"the bucket '{self.bucket}' does not exist: {text}",
                hint="check the name of the bucket, and that the endpoint is the one that has it",
            )
        return RepositoryUnavailable(text, hint=_NO_STORAGE if exception.endswith(_UNREACHABLE) else None)

    def refused(self, identity: str, exception: str, message: str) -> AccessRefused:
        """Return the error for a missing permission or credential; arguments as in `failed`."""
        who = f"{self.action} on {self.target} as {identity}"
        what = f"Exception: '{exception}' Message: '{message}'"
        text = f"{_NO_CLIENT} {what} ({who})" if self.opening else f"{who} failed. {what}"
        return AccessRefused(
            f"{text}; it needs the permission {self.permission}",
            hint=f"grant {self.permission} to this identity, or give credentials of one that has it",
        )

    def gone(self, how: str) -> RepositoryUnavailable:
        """Return the error for an object that is no longer as it was listed; `how` is "removed" or "changed"."""
        return RepositoryUnavailable(
            f"{self.target} was {how} since it was listed", hint="load again: it lists the repository afresh"
        )

    def endless(self) -> RepositoryUnavailable:
        return RepositoryUnavailable(f"{self.target} gives a listing that never ends")

    def answered_by_another(self) -> RepositoryUnavailable:
        return RepositoryUnavailable(
            f"{self.action} on {self.target}: the answer is not one of S3",
            hint="check the endpoint, its port and http(s)",
        )


def safe_text(text: str, secrets: Iterable[str]) -> str:
    """Return a text from the storage on one line, without `secrets`, cut to a readable length."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, _MASK)
    return _one_line(text)[:_LONGEST_MESSAGE]


def _one_line(text: str) -> str:
    return _CONTROL.sub(" ", text)


# At DEBUG botocore logs session tokens, which do not belong in the server's verbose log.
logging.getLogger("botocore").setLevel(logging.WARNING)

_DEFAULT_REGION = "us-east-1"
_CONFIG = Config(
    # The downloader reads in parallel and retries by itself.
    max_pool_connections=32,
    retries={"mode": "standard", "total_max_attempts": 2},
    connect_timeout=10,
    read_timeout=30,
    tcp_keepalive=True,
    # The downloader verifies contents against `S3Store.checksum`, once.
    response_checksum_validation="when_required",
    request_checksum_calculation="when_required",
)

_NO_IDENTITY = "an unknown identity"
_ANONYMOUS = "anonymous"
_TRANSIENT_CODES = frozenset(
    {"InternalError", "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"}
)
_TRANSIENT_ERRORS = (HTTPClientError, ConnectTimeoutError, IncompleteReadError)
_CREDENTIAL_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_NOT_FOUND = frozenset({"NoSuchKey", "NotFound", "404"})
_LISTING_FIELDS = frozenset({"Name", "KeyCount", "IsTruncated"})


class _Access:
    """A client and the identity that it uses."""

    def __init__(self, location: Location, credential: S3Credential | None) -> None:
        """May ask the machine's metadata service for credentials. Raises BotoCoreError, ValueError."""
        credential = credential or S3Credential()
        session = _session(credential)
        self._credentials = session.get_credentials()
        self._region_origin = RegionOrigin.DEFAULT
        if session.region_name:
            self._region_origin = RegionOrigin.CREDENTIAL_FILE if credential.region else RegionOrigin.CONFIGURATION
        self.client = session.client(
            "s3",
            endpoint_url=location.endpoint_url or None,
            region_name=session.region_name or _DEFAULT_REGION,
            config=_CONFIG if self._credentials else _CONFIG.merge(Config(signature_version=UNSIGNED)),
        )

    def identity(self) -> tuple[str, tuple[str, ...]]:
        """Return the identity as it may be shown, and its secrets, which may not."""
        if self._credentials is None:
            return _ANONYMOUS, ()
        origin = "the credential file" if self._credentials.method == "explicit" else self._credentials.method
        try:
            now = self._credentials.get_frozen_credentials()
        except BotoCoreError:
            return f"the credentials from {origin}", ()
        return f"access key …{now.access_key[-4:]} from {origin}", (now.secret_key, now.token or "")

    def describe(self) -> StorageAccess:
        credentials = self._credentials.method if self._credentials else ""
        meta = self.client.meta
        return StorageAccess(self.identity()[0], credentials, meta.endpoint_url, meta.region_name, self._region_origin)


def _session(credential: S3Credential) -> boto3.session.Session:
    if credential.key_id:
        return boto3.session.Session(
            aws_access_key_id=credential.key_id,
            aws_secret_access_key=credential.secret_key,
            aws_session_token=credential.session_token or None,
            region_name=credential.region or None,
        )
    return boto3.session.Session(profile_name=credential.profile or None, region_name=credential.region or None)


def _no_answer(call: S3Call, access: _Access, error: Exception) -> TransientError | RepositoryUnavailable:
    """Return the exception for a call without an answer, or with one that is not S3's."""
    if isinstance(error, _TRANSIENT_ERRORS):
        return TransientError(f"{call.action} on {call.target}: {type(error).__name__}")
    if isinstance(error, (ResponseParserError, ValueError)) and not isinstance(error, BotoCoreError):
        return call.answered_by_another()
    identity, secrets = access.identity()
    return call.failed(identity, type(error).__name__, _message(error, secrets))


def _message(error: Exception, secrets: tuple[str, ...]) -> str:
    if isinstance(error, CredentialRetrievalError):
        # The rest may be the output of the user's own program.
        return f"cannot get credentials from {error.kwargs.get('provider')}"
    return safe_text(str(error), secrets)


class S3Store:
    """The ObjectStore of an `s3://` location; `credential` takes precedence over boto3's default chain.

    Making one does not ask the storage. The first call looks up the credentials. After a refusal the next call looks
    them up again, because their file may have been replaced.
    """

    def __init__(self, location: Location, credential: S3Credential | None) -> None:
        self.location = location.text
        self._place = location
        self._bucket = location.bucket
        self._root = f"{location.prefix}/" if location.prefix else ""
        self._credential = credential
        self._lock = threading.Lock()
        self._access: _Access | None = None
        self._opened = False

    def access(self) -> StorageAccess:
        """Return the access of this store. Looks up the credentials; raises RepositoryUnavailable."""
        return self._open(self._call("s3:ListBucket")).describe()

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

    def folders(self) -> Iterator[str]:
        for page in self._pages(Prefix=self._root, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                name = entry.get("Prefix", "").removeprefix(self._root).removesuffix("/")
                if name:
                    yield name

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        call = self._call("s3:GetObject", wanted.key)
        asked = {"Range": f"bytes={start}-{stop - 1}"} if stop > start else {}
        answer = self._ask(call, "get_object", IfMatch=f'"{wanted.tag}"', **asked)
        with answer["Body"] as body:
            served = answer.get("ContentRange")
            whole = served is None and start == 0 and answer.get("ContentLength") == stop
            if stop > start and not whole and served != f"bytes {start}-{stop - 1}/{wanted.size}":
                raise RepositoryUnavailable(
                    f"{call.target}: asked for bytes {start}-{stop - 1} of {wanted.size}, received '{served}'",
                    hint="the endpoint, or a proxy in front of it, must serve ranges",
                )
            yield from body_pieces(body, stop - start, call.target)

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        call = self._call("s3:GetObject", wanted.key)
        head = self._ask(call, "head_object", IfMatch=f'"{wanted.tag}"', ChecksumMode="ENABLED")

        def part_length(number: int) -> int:
            try:
                part = self._ask(call, "head_object", PartNumber=number)
            except RepositoryUnavailable:  # some storages do not know part numbers
                return 0
            length = part.get("ContentLength", 0)
            return length if isinstance(length, int) else 0

        return object_checksum(head, self._bucket, wanted.tag, wanted.size, part_length)

    def put(self, key: str, content: bytes) -> None:
        self._ask(self._call("s3:PutObject", key), "put_object", Body=content)

    def _call(self, action: str, key: str = "") -> S3Call:
        opening = not key and not self._opened
        if not key:
            return S3Call(action, self.location, self._bucket, opening=opening)
        return S3Call(action, f"{self.location}/{key}", self._bucket, self._root + key)

    def _pages(self, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a listing of the bucket. Raises TransientError, RepositoryUnavailable."""
        call = self._call("s3:ListBucket")
        access = self._open(call)
        with self._errors_of(call, access):
            for page in access.client.get_paginator("list_objects_v2").paginate(Bucket=call.bucket, **query):
                if not page.keys() & _LISTING_FIELDS:  # otherwise any XML page would count as an empty repository
                    raise call.answered_by_another()
                if page.get("IsTruncated") and not page.get("NextContinuationToken"):  # the paginator would end here
                    raise call.endless()
                self._opened = True
                yield page

    def _ask(self, call: S3Call, operation: str, **arguments: object) -> dict[str, Any]:
        """Call the API method `operation` on an object. Raises TransientError, RepositoryUnavailable."""
        access = self._open(call)
        with self._errors_of(call, access):
            answer: dict[str, Any] = getattr(access.client, operation)(Bucket=call.bucket, Key=call.key, **arguments)
            return answer

    @contextmanager
    def _errors_of(self, call: S3Call, access: _Access) -> Iterator[None]:
        """Turn boto3's exceptions, after its few attempts, into RepositoryUnavailable or TransientError.

        They are not chained: their causes may contain secrets, and the message says what they say.
        """
        try:
            yield
        except ClientError as error:
            raise self._answered(call, access, error) from None
        except PaginationError:
            raise call.endless() from None
        except (BotoCoreError, ResponseParserError, ValueError) as error:
            raise _no_answer(call, access, error) from None

    def _open(self, call: S3Call) -> _Access:
        with self._lock:  # a session is for one thread, its clients are for any
            if self._access is None:
                try:
                    self._access = _Access(self._place, self._credential)
                except (BotoCoreError, ValueError) as error:
                    raise call.refused(_NO_IDENTITY, type(error).__name__, _message(error, ())) from None
            return self._access

    def _answered(self, call: S3Call, access: _Access, error: ClientError) -> TransientError | RepositoryUnavailable:
        """Return the exception for an error that the storage answered."""
        code = str(error.response.get("Error", {}).get("Code", "Unknown"))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _TRANSIENT_CODES or status == 429 or (status >= 500 and status != 501):
            return TransientError(f"{call.action} on {call.target}: {safe_text(code, ())} ({status})")
        if call.key and code in _NOT_FOUND:
            return call.gone("removed")
        if call.key and status in (412, 416):
            return call.gone("changed")
        identity, secrets = access.identity()
        message = safe_text(str(error.response.get("Error", {}).get("Message", "")), secrets)
        if status in (401, 403) or code in _CREDENTIAL_CODES:
            with self._lock:
                if self._access is access:
                    self._access = None
            return call.refused(identity, safe_text(code, secrets), message)
        return call.failed(identity, safe_text(code, secrets), message)
