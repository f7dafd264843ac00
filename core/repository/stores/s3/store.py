"""Amazon S3 and what speaks its protocol, through boto3. The only module that imports it.

Who asks, who may and where (AWS_PROFILE, AWS_ENDPOINT_URL_S3, roles, web identity, addressing styles) is decided by
boto3's own default chain; only what the repository's URI or the credential file says goes before it. With a custom
endpoint botocore writes the bucket into the path, unless the AWS configuration asks for the virtual style.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from core.errors import RepositoryUnavailable
from core.repository.location import Location
from core.repository.stores.cloud_credentials import S3Credential
from core.repository.stores.object_store import Checksum, StoredObject, TransientError
from core.repository.stores.s3.call import S3Call, safe_text
from core.repository.stores.s3.checksums import content_digest, object_checksum

# At DEBUG it writes session tokens into the log, and nobody asks for that who asks for everything to be logged.
logging.getLogger("botocore").setLevel(logging.WARNING)

_DEFAULT_REGION = "us-east-1"
_PIECE = 256 << 10
_CONFIG = Config(
    # The download engine reads in parallel, and retries by itself.
    max_pool_connections=32,
    retries={"mode": "standard", "total_max_attempts": 2},
    connect_timeout=10,
    read_timeout=30,
    tcp_keepalive=True,
    # What is read is checked against `checksum`, once.
    response_checksum_validation="when_required",
    request_checksum_calculation="when_required",
)

_NO_IDENTITY = "nobody yet"
_ANONYMOUS = "anonymous"
_TRANSIENT_CODES = frozenset(
    {"InternalError", "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"}
)
_TRANSIENT_ERRORS = (HTTPClientError, ConnectTimeoutError, IncompleteReadError)
_CREDENTIAL_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_NOT_FOUND = frozenset({"NoSuchKey", "NotFound", "404"})
_LISTING_FIELDS = frozenset({"Name", "KeyCount", "IsTruncated"})


class _Access:
    """A client, and in whose name it asks."""

    def __init__(self, location: Location, credential: S3Credential | None) -> None:
        """May ask the machine's metadata service for credentials. Raises BotoCoreError, ValueError."""
        session = _session(credential or S3Credential())
        self._credentials = session.get_credentials()
        self.client = session.client(
            "s3",
            endpoint_url=location.endpoint_url or None,
            region_name=session.region_name or _DEFAULT_REGION,
            config=_CONFIG if self._credentials else _CONFIG.merge(Config(signature_version=UNSIGNED)),
        )

    def identity(self) -> tuple[str, tuple[str, ...]]:
        """The identity as it may be shown, and its secrets, which may not."""
        if self._credentials is None:
            return _ANONYMOUS, ()
        origin = "the credential file" if self._credentials.method == "explicit" else self._credentials.method
        try:
            now = self._credentials.get_frozen_credentials()
        except BotoCoreError:
            return f"the credentials from {origin}", ()
        return f"access key …{now.access_key[-4:]} from {origin}", (now.secret_key, now.token or "")


class S3Store:
    """The ObjectStore of a bucket, or of what is under a prefix in it.

    Nothing is asked before the first use. After a refusal the credentials are looked up afresh with the next use: they
    may have been exchanged in their file.
    """

    def __init__(self, location: Location, credential: S3Credential | None) -> None:
        self.location = location.text
        self._place = location
        self._credential = credential
        self._root = f"{location.prefix}/" if location.prefix else ""
        self._lock = threading.Lock()
        self._access: _Access | None = None
        self._opened = False

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
                            hint="it takes these to tell what a model consists of, and when it changes",
                        )
                if key.endswith("/") or not key.startswith(root):  # what consoles make to show an empty folder
                    continue
                etag = quoted.strip('"')
                yield StoredObject(key[len(self._root) :], size, etag, content_digest(self._place.bucket, etag))

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
        body = answer["Body"]
        try:
            _check_range(call, answer, wanted, start, stop)
            yield from _pieces(call, body, stop - start)
        finally:
            body.close()

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        call = self._call("s3:GetObject", wanted.key)
        head = self._ask(call, "head_object", IfMatch=f'"{wanted.tag}"', ChecksumMode="ENABLED")

        def part_length(number: int) -> int:
            try:
                part = self._ask(call, "head_object", PartNumber=number)
            except RepositoryUnavailable:  # a storage that does not know of parts
                return 0
            length = part.get("ContentLength", 0)
            return length if isinstance(length, int) else 0

        return object_checksum(head, self._place.bucket, wanted.tag, wanted.size, part_length)

    def _call(self, action: str, key: str = "") -> S3Call:
        opening = not key and not self._opened
        if not key:
            return S3Call(action, self.location, self._place.bucket, opening=opening)
        return S3Call(action, f"{self.location}/{key}", self._place.bucket, self._root + key)

    def _pages(self, **query: str) -> Iterator[dict[str, Any]]:
        token: str | None = None
        while True:
            more = {"ContinuationToken": token} if token else {}
            call = self._call("s3:ListBucket")
            page = self._ask(call, "list_objects_v2", **query, **more)
            if not page.keys() & _LISTING_FIELDS:  # any XML page would otherwise be an empty repository
                raise _not_s3(call)
            self._opened = True
            yield page
            if not page.get("IsTruncated"):
                return
            last, token = token, page.get("NextContinuationToken")
            if not token or token == last:
                raise RepositoryUnavailable(f"{self.location} gives a listing that does not come to its end")

    def _ask(self, call: S3Call, operation: str, **arguments: object) -> dict[str, Any]:
        """One call with botocore's few attempts. Raises TransientError, RepositoryUnavailable.

        Both without their cause: it may repeat secrets, and what it says is in the message.
        """
        access = self._open(call)
        key = {"Key": call.key} if call.key else {}
        try:
            answer: dict[str, Any] = getattr(access.client, operation)(Bucket=call.bucket, **key, **arguments)
        except ClientError as error:
            raise self._answered(call, access, error) from None
        except (BotoCoreError, ResponseParserError, ValueError) as error:
            raise _unanswered(call, access, error) from None
        return answer

    def _open(self, call: S3Call) -> _Access:
        with self._lock:  # a session of boto3 is for one thread, its clients for any
            if self._access is None:
                try:
                    self._access = _Access(self._place, self._credential)
                except (BotoCoreError, ValueError) as error:
                    raise call.refused(_NO_IDENTITY, type(error).__name__, _message(error, ())) from None
            return self._access

    def _answered(self, call: S3Call, access: _Access, error: ClientError) -> TransientError | RepositoryUnavailable:
        """What an error that the storage answered with means."""
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
            self._forget(access)
            return call.refused(identity, safe_text(code, secrets), message)
        return call.failed(identity, safe_text(code, secrets), message)

    def _forget(self, access: _Access) -> None:
        with self._lock:
            if self._access is access:
                self._access = None


def _session(credential: S3Credential) -> Any:
    region = credential.region or None
    if credential.key_id:
        return boto3.session.Session(
            aws_access_key_id=credential.key_id,
            aws_secret_access_key=credential.secret_key,
            aws_session_token=credential.session_token or None,
            region_name=region,
        )
    return boto3.session.Session(profile_name=credential.profile or None, region_name=region)


def _unanswered(call: S3Call, access: _Access, error: Exception) -> TransientError | RepositoryUnavailable:
    """What it means that no answer came, or none of S3."""
    if isinstance(error, _TRANSIENT_ERRORS):
        return TransientError(f"{call.action} on {call.target}: {type(error).__name__}")
    if isinstance(error, (ResponseParserError, ValueError)) and not isinstance(error, BotoCoreError):
        return _not_s3(call)
    identity, secrets = access.identity()
    return call.failed(identity, type(error).__name__, _message(error, secrets))


def _not_s3(call: S3Call) -> RepositoryUnavailable:
    return RepositoryUnavailable(
        f"{call.action} on {call.target}: the answer is not one of S3", hint="check the endpoint, its port and http(s)"
    )


def _message(error: Exception, secrets: tuple[str, ...]) -> str:
    if isinstance(error, CredentialRetrievalError):
        # The rest may be what a program of the user's printed.
        return f"no credentials could be got from {error.kwargs.get('provider')}"
    return safe_text(str(error), secrets)


def _check_range(call: S3Call, answer: dict[str, Any], wanted: StoredObject, start: int, stop: int) -> None:
    """Raises RepositoryUnavailable for other bytes than those that were asked for."""
    if stop <= start:
        return
    served = answer.get("ContentRange")
    whole = served is None and start == 0 and answer.get("ContentLength") == stop
    if not whole and served != f"bytes {start}-{stop - 1}/{wanted.size}":
        raise RepositoryUnavailable(
            f"{call.target}: bytes {start}-{stop - 1} of {wanted.size} were asked for, and '{served}' came",
            hint="the endpoint, or a proxy before it, must serve ranges",
        )


def _pieces(call: S3Call, body: Any, length: int) -> Iterator[bytes]:
    """`length` bytes of `body`, in pieces of up to 256 KiB."""
    left = length
    # What has arrived, in one copy: the body's own `read` gathers and joins, at twice the time of the whole download.
    read = body._raw_stream.read1
    while left > 0:
        try:
            piece: bytes = read(min(left, _PIECE))
        except (*_TRANSIENT_ERRORS, HTTPError) as error:
            raise TransientError(
                f"{call.target} broke off {left} bytes before its end: {type(error).__name__}"
            ) from None
        if not piece:
            raise TransientError(f"{call.target} ended {left} bytes too early")
        left -= len(piece)
        yield piece
