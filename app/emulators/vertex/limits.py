"""The limits that the platform sets for a container and its callers.

Source: docs/spec/vertex.md sections A2, A4 and A5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import orjson

_MB = 1_000_000


class EndpointType(StrEnum):
    """How callers reach an endpoint, which decides its limits."""

    DEDICATED = "dedicated"
    SHARED = "shared"


LONGEST_INFERENCE_S = 3600.0
"""The highest inference timeout of a dedicated endpoint; a shared endpoint's cannot be set."""
LONGEST_DEPLOYMENT_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformLimits:
    """Times in seconds, sizes in bytes; the defaults are a dedicated endpoint's. Tests make them shorter."""

    liveness_tries: int = 4
    """Failed connections after which a container that does not listen is restarted."""
    liveness_interval_s: float = 10.0
    connect_s: float = 10.0
    """Until the container accepts the connection of a request or a health probe."""
    health_s: float = 10.0
    health_interval_s: float = 10.0
    health_failures: int = 4
    """Consecutive failed probes after which the container gets no calls."""
    deployment_s: float = 1800.0
    """From the start until the first successful health probe."""
    inference_s: float = 600.0
    stop_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    body_bytes: int = 10 * _MB
    """The body of a request, and of an answer that is not streamed."""


def online_limits(
    endpoint_type: EndpointType, deployment_s: float | None = None, inference_s: float | None = None
) -> PlatformLimits:
    """The limits of an endpoint; None is the platform's default."""
    is_shared = endpoint_type is EndpointType.SHARED
    return PlatformLimits(
        deployment_s=deployment_s or PlatformLimits().deployment_s,
        inference_s=inference_s or (60.0 if is_shared else PlatformLimits().inference_s),
        body_bytes=_MB * 3 // 2 if is_shared else PlatformLimits().body_bytes,
    )


def batch_limits(deployment_s: float | None = None) -> PlatformLimits:
    """The limits of a batch prediction job: it waits longer for its model, and sizes are not documented."""
    return PlatformLimits(deployment_s=deployment_s or 2400.0, body_bytes=1 << 30)


# Source: docs/spec/vertex.md section A1.


PROJECT_NUMBER = "123456789012"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Ids are texts of digits. `predict_route` and `health_route` are "" for the platform's default routes,
    and `grpc_port` is 0 if the model names none.

    `is_invoked`: the model has an invoke route prefix, so callers reach every path of the container by `invoke` only.
    """

    project_number: str = PROJECT_NUMBER
    location: str = "us-central1"
    endpoint_id: str = "1234567890123456789"
    deployed_model_id: str = "2345678901234567890"
    model_id: str = "3456789012345678901"
    model_version_id: str = "1"
    display_name: str = "model"
    endpoint_type: EndpointType = EndpointType.DEDICATED
    is_invoked: bool = False
    predict_route: str = ""
    health_route: str = ""
    grpc_port: int = 0

    @property
    def endpoint(self) -> str:
        """The resource name of the endpoint."""
        return f"{self._location}/endpoints/{self.endpoint_id}"

    @property
    def model(self) -> str:
        """The resource name of the model."""
        return f"{self._location}/models/{self.model_id}"

    @property
    def predict_path(self) -> str:
        return self.predict_route or f"{self.health_form}:predict"

    @property
    def health_path(self) -> str:
        return self.health_route or self.health_form

    @property
    def health_form(self) -> str:
        return f"/v1/endpoints/{self.endpoint_id}/deployedModels/{self.deployed_model_id}"

    @property
    def _location(self) -> str:
        return f"projects/{self.project_number}/locations/{self.location}"


# Source: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto


class CanonicalCode(IntEnum):
    """The code of an error: its name in answers of the API, its number in the output of batch jobs."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


# The texts about sizes are quoted from reports of the platform's users. It is not documented that an error of the
# container keeps its status and becomes the message. Source: docs/spec/vertex.md sections A3 and A4.


_LONGEST_MESSAGE = 64 << 10
STATUSES = {
    400: CanonicalCode.INVALID_ARGUMENT,
    401: CanonicalCode.UNAUTHENTICATED,
    403: CanonicalCode.PERMISSION_DENIED,
    404: CanonicalCode.NOT_FOUND,
    409: CanonicalCode.ABORTED,
    429: CanonicalCode.RESOURCE_EXHAUSTED,
    499: CanonicalCode.CANCELLED,
    500: CanonicalCode.INTERNAL,
    501: CanonicalCode.UNIMPLEMENTED,
    503: CanonicalCode.UNAVAILABLE,
    504: CanonicalCode.DEADLINE_EXCEEDED,
}
_ERRORS = range(400, 600)
_CLIENT_ERRORS = range(400, 500)


class GoogleError(Exception):
    """`code` is the HTTP status, `status` the canonical code."""

    def __init__(self, code: int, message: str, status: CanonicalCode | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or _status_of(code)

    def body(self) -> bytes:
        return orjson.dumps({"error": {"code": self.code, "message": self.message, "status": self.status.name}})


def invalid(message: str) -> GoogleError:
    """The error for an invalid call."""
    return GoogleError(400, message)


def impossible(message: str) -> GoogleError:
    """The error for a valid call that this deployment does not support."""
    return GoogleError(400, message, CanonicalCode.FAILED_PRECONDITION)


def request_too_large(size: int, most: int) -> GoogleError:
    return impossible(f"The request size ({size} bytes) exceeds {most / 1_000_000:.3f}MB limit.")


def response_too_large(deployment: Deployment, most: int) -> GoogleError:
    names = f"endpoint_id: {deployment.endpoint_id}, deployed_model_id: {deployment.deployed_model_id}"
    return invalid(f"Failed to handle request. {names} with error: `Response size too large; max is {most}.`")


def refused(status: int, text: str) -> GoogleError:
    """The error for an answer of the container with `status`, which is not 200, and `text`."""
    return GoogleError(
        status if status in _ERRORS else 500, text[:_LONGEST_MESSAGE] or f"the container answered {status}"
    )


def _status_of(code: int) -> CanonicalCode:
    return STATUSES.get(code, CanonicalCode.FAILED_PRECONDITION if code in _CLIENT_ERRORS else CanonicalCode.INTERNAL)
