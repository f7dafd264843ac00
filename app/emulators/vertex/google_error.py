"""The errors of the API, as the SDK reads them.

The texts about sizes are quoted from reports of the platform's users. It is not documented that an error of the
container keeps its status and becomes the message.
Source: docs/spec/vertex.md sections A3 and A4.
"""

from __future__ import annotations

import orjson

from app.emulators.vertex.canonical_code import CanonicalCode
from app.emulators.vertex.deployment import Deployment

_LONGEST_MESSAGE = 64 << 10
_STATUSES = {
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
    if code in _STATUSES:
        return _STATUSES[code]
    return CanonicalCode.FAILED_PRECONDITION if code in _CLIENT_ERRORS else CanonicalCode.INTERNAL
