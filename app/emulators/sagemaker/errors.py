"""The errors of the runtime API.

Source: docs/spec/sagemaker.md section A3, "Caller view".
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

_LONGEST_MESSAGE = 64 << 10
_CLIENT_ERRORS = range(400, 500)


class ApiError(Exception):
    """`kind` is the class of the SDK's exception, `members` are its fields besides the message."""

    def __init__(self, status: int, kind: str, message: str, members: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.members = dict(members or {})

    def body(self) -> bytes:
        return orjson.dumps({**self.members, "Message": self.message})


def validation_error(message: str) -> ApiError:
    """The error for an invalid call."""
    return ApiError(400, "ValidationError", message)


def endpoint_deleted() -> ApiError:
    """The error for a call while the emulator ends, when the container gets no more requests."""
    return validation_error("The endpoint is being deleted")


def model_not_ready(message: str) -> ApiError:
    return ApiError(429, "ModelNotReadyException", message)


def model_error(status: int, original: str) -> ApiError:
    """The error for an answer of the container with `status` and the text `original`; status 0 means no answer."""
    original = original[:_LONGEST_MESSAGE]
    whose = "client" if status in _CLIENT_ERRORS else "server"
    message = f'Received {whose} error ({status}) from primary with message "{original}".'
    return ApiError(424, "ModelError", message, {"OriginalStatusCode": status, "OriginalMessage": original})
