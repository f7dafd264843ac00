"""What the runtime API answers where it does not answer with the container's own words.

Source: docs/spec/sagemaker.md section A3, "Caller view".
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

_LONGEST_MESSAGE = 64 << 10
_CLIENT_ERRORS = range(400, 500)


class ApiError(Exception):
    """`kind` is the class of the SDK's exception, `members` what it has beside its message."""

    def __init__(self, status: int, kind: str, message: str, members: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.members = dict(members or {})

    def body(self) -> bytes:
        return orjson.dumps({**self.members, "Message": self.message})


def validation_error(message: str) -> ApiError:
    """The caller asked for what cannot be."""
    return ApiError(400, "ValidationError", message)


def endpoint_deleted() -> ApiError:
    """The session ends: nothing is asked of the container any more."""
    return validation_error("The endpoint is being deleted")


def model_not_ready(message: str) -> ApiError:
    return ApiError(429, "ModelNotReadyException", message)


def model_error(status: int, original: str) -> ApiError:
    """The container answered with `status` and `original`; status 0 is for no answer at all."""
    original = original[:_LONGEST_MESSAGE]
    whose = "client" if status in _CLIENT_ERRORS else "server"
    message = f'Received {whose} error ({status}) from primary with message "{original}".'
    return ApiError(424, "ModelError", message, {"OriginalStatusCode": status, "OriginalMessage": original})
