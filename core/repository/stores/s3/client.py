"""Requests to Amazon S3 and to storages that speak its protocol, through botocore; the only module that imports it.

botocore is what boto3 is built on: the same sessions, clients and settings, without boto3's own layer, which would take
a quarter more CPU time before the first request. Their default chain decides about identity, permissions and endpoint
(AWS_PROFILE, AWS_ENDPOINT_URL_S3, roles, web identity, addressing styles). Only the repository's URI and the credential
file take precedence over it. With a custom endpoint botocore writes the bucket into the path, unless the AWS
configuration asks for the virtual style.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import botocore.session
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

from core.errors import RepositoryUnavailable
from core.repository.location import Location
from core.repository.stores.access import RegionOrigin, StorageAccess
from core.repository.stores.cloud_credentials import S3Credential
from core.repository.stores.object_store import TransientError
from core.repository.stores.s3.call import S3Call, safe_text

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

_NO_IDENTITY = "nobody yet"
_ANONYMOUS = "anonymous"
_TRANSIENT_CODES = frozenset(
    {"InternalError", "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"}
)
_TRANSIENT_ERRORS = (HTTPClientError, ConnectTimeoutError, IncompleteReadError)
_CREDENTIAL_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_NOT_FOUND = frozenset({"NoSuchKey", "NotFound", "404"})


class _Access:
    """A client and the identity that it uses."""

    def __init__(self, location: Location, credential: S3Credential | None) -> None:
        """May ask the machine's metadata service for credentials. Raises BotoCoreError, ValueError."""
        credential = credential or S3Credential()
        session = _session(credential)
        self._credentials = session.get_credentials()
        self._region_origin = RegionOrigin.DEFAULT
        region = session.get_config_variable("region")
        if region:
            self._region_origin = RegionOrigin.CREDENTIAL_FILE if credential.region else RegionOrigin.CONFIGURATION
        self.client = session.create_client(
            "s3",
            endpoint_url=location.endpoint_url or None,
            region_name=region or _DEFAULT_REGION,
            config=_CONFIG if self._credentials else _CONFIG.merge(Config(signature_version=UNSIGNED)),
        )

    def identity(self) -> tuple[str, tuple[str, ...]]:
        """The identity as it may be shown, and its secrets, which may not be shown."""
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


class S3Client:
    """Makes calls for one location; any thread, several at once.

    The first call looks up the credentials. After a refusal the next call looks them up again, because their file may
    have been replaced.
    """

    def __init__(self, location: Location, credential: S3Credential | None) -> None:
        self._location = location
        self._credential = credential
        self._lock = threading.Lock()
        self._access: _Access | None = None

    def access(self, call: S3Call) -> StorageAccess:
        """The access with which `call` would be made. Looks up the credentials; raises RepositoryUnavailable."""
        return self._open(call).describe()

    def ask(self, call: S3Call, operation: str, **arguments: object) -> dict[str, Any]:
        """Call the API method `operation`, with botocore's few attempts. Raises TransientError, RepositoryUnavailable.

        The errors are not chained: their causes may contain secrets, and the message says what they say.
        """
        access = self._open(call)
        key = {"Key": call.key} if call.key else {}
        try:
            answer: dict[str, Any] = getattr(access.client, operation)(Bucket=call.bucket, **key, **arguments)
        except ClientError as error:
            raise self._answered(call, access, error) from None
        except (BotoCoreError, ResponseParserError, ValueError) as error:
            raise _no_answer(call, access, error) from None
        return answer

    def _open(self, call: S3Call) -> _Access:
        with self._lock:  # a session is for one thread, its clients are for any
            if self._access is None:
                try:
                    self._access = _Access(self._location, self._credential)
                except (BotoCoreError, ValueError) as error:
                    raise call.refused(_NO_IDENTITY, type(error).__name__, _message(error, ())) from None
            return self._access

    def _answered(self, call: S3Call, access: _Access, error: ClientError) -> TransientError | RepositoryUnavailable:
        """The exception for an error that the storage answered."""
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
    session = botocore.session.get_session()
    if credential.region:
        session.set_config_variable("region", credential.region)
    if credential.key_id:
        session.set_credentials(credential.key_id, credential.secret_key, credential.session_token or None)
    elif credential.profile:
        session.set_config_variable("profile", credential.profile)
    return session


def _no_answer(call: S3Call, access: _Access, error: Exception) -> TransientError | RepositoryUnavailable:
    """The exception for a call without an answer, or with an answer that is not S3's."""
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
