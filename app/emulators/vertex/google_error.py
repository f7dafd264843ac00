"""What the API answers where it does not answer with predictions, as the SDK reads it.

The texts about sizes are those that callers of the platform report. That a container's own refusal keeps its status,
and its body as the message, is not documented.
Source: docs/spec/vertex.md sections A3 and A4.
"""

from __future__ import annotations

import orjson

from app.emulators.vertex.deployment import Deployment

_LONGEST_MESSAGE = 64 << 10
_INTERNAL = "INTERNAL"
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: _INTERNAL,
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_ERRORS = range(400, 600)
_CLIENT_ERRORS = range(400, 500)


class GoogleError(Exception):
    """`code` is the HTTP status, `status` the name of the canonical code."""

    def __init__(self, code: int, message: str, status: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or _status_of(code)

    def body(self) -> bytes:
        return orjson.dumps({"error": {"code": self.code, "message": self.message, "status": self.status}})


def invalid(message: str) -> GoogleError:
    """The caller asked for what cannot be."""
    return GoogleError(400, message)


def impossible(message: str) -> GoogleError:
    """The caller asked for what this deployment does not do."""
    return GoogleError(400, message, "FAILED_PRECONDITION")


def request_too_large(size: int, most: int) -> GoogleError:
    return impossible(f"The request size ({size} bytes) exceeds {most / 1_000_000:.3f}MB limit.")


def response_too_large(deployment: Deployment, most: int) -> GoogleError:
    names = f"endpoint_id: {deployment.endpoint_id}, deployed_model_id: {deployment.deployed_model_id}"
    return invalid(f"Failed to handle request. {names} with error: `Response size too large; max is {most}.`")


def refused(status: int, text: str) -> GoogleError:
    """The container answered with `status`, which is not 200, and `text`."""
    return GoogleError(
        status if status in _ERRORS else 500, text[:_LONGEST_MESSAGE] or f"the container answered {status}"
    )


def _status_of(code: int) -> str:
    if code in _STATUSES:
        return _STATUSES[code]
    return "FAILED_PRECONDITION" if code in _CLIENT_ERRORS else _INTERNAL
