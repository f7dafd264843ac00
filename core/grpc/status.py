"""The statuses of gRPC, and those of all errors: no other module of core knows a status number of gRPC.

    ServerError
    └── GrpcError    a refusal that only gRPC knows; it has its status

Source: docs/spec/grpc.md section 2; gRPC's `statuscodes.md`.
"""

from __future__ import annotations

import logging
import re
from enum import IntEnum

from trident.core.errors import UNEXPECTED, ErrorCode, ErrorHints, ServerError, has_telling_traceback
from trident.core.frontend.access import Unauthenticated
from trident.core.observability.refusals import is_refusal, note_refusal


class MalformedMessage(ServerError):
    code = ErrorCode.INTERNAL
    blames_client = True

    def __init__(self) -> None:
        super().__init__(
            "Unable to parse request", hint="the message does not follow grpc_service.proto, or it is cut off"
        )


LONGEST_TEXT = 4096
_LONGEST_HINT = 1024
_LONGEST_LOGGED = 2048
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")

_logger = logging.getLogger("trident.grpc")


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


STATUS_OF_CODE: dict[ErrorCode, Status] = {
    ErrorCode.UNKNOWN: Status.UNKNOWN,
    ErrorCode.INTERNAL: Status.INTERNAL,
    ErrorCode.NOT_FOUND: Status.NOT_FOUND,
    ErrorCode.INVALID_ARG: Status.INVALID_ARGUMENT,
    ErrorCode.UNAVAILABLE: Status.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: Status.UNIMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    ErrorCode.CANCELLED: Status.CANCELLED,
}
# A fault of the server, which a person has to look at.
_FAULTS = frozenset({Status.INTERNAL, Status.UNKNOWN, Status.DATA_LOSS})
# The client waits no more.
_GIVEN_UP = frozenset({Status.CANCELLED, Status.DEADLINE_EXCEEDED})
_OVERLOADS = frozenset({Status.UNAVAILABLE, Status.UNIMPLEMENTED})


class GrpcError(ServerError):
    """A refusal that only gRPC knows. `fields` are added to the trailers."""

    blames_client = True

    def __init__(
        self, status: Status, message: str, *, hint: str | None = None, fields: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.fields = fields


def status_of(error: Exception) -> Status:
    """The status for any error; INTERNAL for an unexpected one."""
    if isinstance(error, GrpcError):
        return error.status
    if isinstance(error, Unauthenticated):
        return Status.UNAUTHENTICATED
    return STATUS_OF_CODE[error.code] if isinstance(error, ServerError) else Status.INTERNAL


def message_of(error: Exception, hints: ErrorHints) -> str:
    """The text for the client. It says nothing about an unexpected error: the log has the details."""
    return error.client_text(hints) if isinstance(error, ServerError) else UNEXPECTED


def hint_of(error: Exception) -> str:
    """The hint in printable ASCII, of bounded length; "" without one."""
    hint = error.hint if isinstance(error, ServerError) else None
    return _UNPRINTABLE.sub("?", hint[:_LONGEST_HINT]).strip() if hint else ""


def log_error(error: Exception, status: Status, method: str, request_id: str = "") -> None:
    """Log one line for a client's mistake or an overload, and a traceback for a fault in the server, as HTTP does. The
    console keeps a request that was refused."""
    hint = error.hint if isinstance(error, ServerError) else None
    if is_refusal(error) and status not in _GIVEN_UP:
        model = error.model if isinstance(error, ServerError) else None
        note_refusal(method, model or "", status.name, message_of(error, ErrorHints.FIELD), hint)
    is_fault = status in _FAULTS and not (isinstance(error, ServerError) and error.blames_client)
    level = logging.ERROR if is_fault else logging.WARNING if status in _OVERLOADS else logging.INFO
    if not _logger.isEnabledFor(level):
        return
    message = error.log_text if isinstance(error, ServerError) else repr(error)
    _logger.log(
        level,
        "%s: %s %s%s%s",
        method,
        status.name,
        # A message may quote the whole request.
        message[:_LONGEST_LOGGED],
        f" (hint: {hint[:_LONGEST_LOGGED]})" if hint else "",
        f" (request id: {request_id[:_LONGEST_LOGGED]})" if request_id else "",
        exc_info=error if is_fault and has_telling_traceback(error) else None,
        extra={"code": status.name, "hint": hint, "request_id": request_id},
    )


def too_large(size: int, limit: int) -> GrpcError:
    """The error for a message of `size` bytes, or of more for a compressed one."""
    return GrpcError(
        Status.RESOURCE_EXHAUSTED,
        f"Received message larger than max ({size} vs. {limit})",
        hint="send fewer items in one message",
    )
