"""boto3's clients, and their errors as messages with hints."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from deploy.sagemaker.errors import BadSettings, CallFailed
from deploy.sagemaker.plan import Call

# Longer than the platform waits for an answer of the container, which is 60 seconds.
_READ_TIMEOUT_S = 90
_EMULATED_REGION = "us-east-1"
_HINTS = {
    "AccessDeniedException": "docs/deploy-sagemaker.md lists the rights that each action needs",
    "AccessDenied": "docs/deploy-sagemaker.md lists the rights that each action needs",
    "ExpiredTokenException": "sign in again",
    "ExpiredToken": "sign in again",
    "UnrecognizedClientException": "the credentials do not belong to this account or region",
    "ResourceLimitExceeded": "a quota of the account: request an increase under Service Quotas, or use other instances",
}
_ABSENT = ("could not find", "does not exist", "not found", "no scalable target found")
_EXISTING = ("already exist",)


class Clients:
    """A context manager and a function that returns the client of an API by boto3's name for the API.

    Each client is made once and closed on exit. An empty region or address selects boto3's default. At an address the
    client does without a region and credentials if there are none.
    """

    def __init__(self, region: str, endpoint_url: str) -> None:
        self._region = region
        self._endpoint_url = endpoint_url
        self._made: dict[str, Any] = {}

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._made.values():
            client.close()

    def __call__(self, service: str) -> Any:
        """Raises BadSettings if boto3 cannot make the client, for example without a region."""
        if service not in self._made:
            self._made[service] = self._make(service)
        return self._made[service]

    def _make(self, service: str) -> Any:
        config = Config(read_timeout=_READ_TIMEOUT_S, retries={"mode": "standard", "max_attempts": 5})
        try:
            session = boto3.session.Session(region_name=self._region or None)
            if self._endpoint_url:  # an emulator asks neither who calls nor from where
                session = boto3.session.Session(region_name=session.region_name or _EMULATED_REGION)
                if session.get_credentials() is None:
                    config = config.merge(Config(signature_version=UNSIGNED))
            return session.client(service, endpoint_url=self._endpoint_url or None, config=config)
        except NoRegionError:
            raise BadSettings("no region is given", hint="use --region or AWS_DEFAULT_REGION") from None
        except (BotoCoreError, ValueError) as error:
            raise BadSettings(str(error)) from None


def call_failed(call: Call, error: Exception) -> CallFailed:
    """The error that botocore raised, with a hint."""
    if isinstance(error, NoCredentialsError):
        return CallFailed(f"{call.name}: there are no credentials", hint="use aws configure or AWS_PROFILE")
    if not isinstance(error, ClientError):
        return CallFailed(f"{call.name}: {error}")
    code, message = error_of(error)
    hint = _HINTS.get(code, "")
    if call.operation == "CreateEndpoint" and is_existing(error):
        hint = "use the action update to deploy a new model to an existing endpoint"
    elif call.parameters.get("EndpointName") and is_absent(error):
        hint = "use the action create, or check region and account"
    return CallFailed(f"{call.name}: {code}: {message}", hint=hint)


def error_of(error: ClientError) -> tuple[str, str]:
    """The code and the message of an error."""
    found: Any = error.response.get("Error", {})
    return str(found.get("Code", "")), str(found.get("Message", ""))


def is_absent(error: Exception) -> bool:
    """Whether the resource that a call names does not exist; the APIs use several codes for this."""
    return _says(error, _ABSENT) or (isinstance(error, ClientError) and "NotFound" in error_of(error)[0])


def is_existing(error: Exception) -> bool:
    return _says(error, _EXISTING)


def _says(error: Exception, texts: tuple[str, ...]) -> bool:
    return isinstance(error, ClientError) and any(text in error_of(error)[1].lower() for text in texts)
