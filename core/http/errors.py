"""Errors of HTTP, and the statuses of all errors: no other module of core knows a status number.

    ServerError
    ├── HttpError           errors that only HTTP knows
    │   ├── RouteNotFound     404
    │   └── MethodNotAllowed  405
    ├── ApiRestricted       403
    ├── Unauthenticated     401, with the challenge in a header
    ├── InvalidRequest
    │   ├── BodyTooLarge       413
    │   └── BrokenCompression  400
    └── Unsupported
        └── UnsupportedEncoding  501, with the supported encodings in a header

Source: docs/spec/http.md section 1 (Triton's `HttpCodeFromError`), section 6 "Compression".
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import Final

import orjson

from trident.core.errors import (
    UNEXPECTED,
    ErrorCode,
    ErrorHints,
    InvalidRequest,
    ModelCold,
    ServerError,
    Unsupported,
    has_telling_traceback,
    readable,
)
from trident.core.frontend.access import ApiRestricted, Unauthenticated
from trident.core.http.reply import Environ, Headers, Reply, request_path, text_reply
from trident.core.observability.refusals import is_refusal, note_refusal

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


def event(text: bytes) -> bytes:
    """The event with `text`, which has no line break."""
    return b"data: %b\n\n" % text


# A buffering proxy would delay the events.
UNBUFFERED: Final = ("X-Accel-Buffering", "no")
HINT_HEADER: Final = "Trident-Hint"
REQUEST_ID_HEADER = "Trident-Request-Id"
# The infer view stores the request's id under this key as soon as it knows it.
REQUEST_ID_KEY: Final = "trident.request_id"
# The model that answered a request or refused it, as InferenceNote of the front end.
INFERENCE_KEY: Final = "trident.inference"
# A view of events stores under this key, before it raises an error that is to be an event, the body with it and those
# that follow, or None if it is the only one.
AS_EVENT_KEY: Final = "trident.as_event"

STATUS_OF_CODE: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
}
_UNAUTHENTICATED = 401
_FORBIDDEN = 403
_TOO_LARGE = 413
_BROKEN = 500
_LONGEST_HEADER = 1024
_LONGEST_LOGGED = 2048
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
# An open page polls, with or without a token; `trident top` does, with or without a console.
_CONSOLE = "/console/"

_logger = logging.getLogger("trident.http")


class HttpError(ServerError):
    """A refusal that only HTTP knows; the class has its status."""

    code = ErrorCode.INVALID_ARG
    status = 400


# Hints for paths without a page.
NO_CONSOLE: Final = "for a page in the browser start the server with --console=true: it is then at /console"
DOCUMENTED: Final = "GET /v2/docs/openapi.json describes the routes"


class RouteNotFound(HttpError):
    status = 404

    def __init__(self, hint: str | None = None, message: str = "Not Found") -> None:
        super().__init__(message, hint=hint)


class MethodNotAllowed(HttpError):
    status = 405

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = tuple(sorted(allowed))
        super().__init__("Method Not Allowed", hint=f"this path takes {' and '.join(self.allowed)}")


class BodyTooLarge(InvalidRequest):
    """The body has more bytes than the server takes, as sent or inflated."""


class BrokenCompression(InvalidRequest):
    """The body contradicts its Content-Encoding: it is cut off, too long or something else."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"failed to decompress the request body: {reason}")


class UnsupportedEncoding(Unsupported):
    def __init__(self) -> None:
        super().__init__("Unsupported compression type", hint="compress with gzip or deflate, or send it as it is")


def status_of(error: Exception) -> int:
    """The status for any error; 500 for an unexpected one."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, Unauthenticated):
        return _UNAUTHENTICATED
    if isinstance(error, ApiRestricted):
        return _FORBIDDEN
    if isinstance(error, BodyTooLarge):
        return _TOO_LARGE
    if isinstance(error, ServerError):
        return STATUS_OF_CODE[error.code]
    return _refusal(error)[0] or _BROKEN


def message_of(error: Exception, hints: ErrorHints = ErrorHints.FIELD) -> str:
    """The text for the client. It hides the details of an unexpected error, which are in the log."""
    if isinstance(error, ServerError):
        return error.client_text(hints)
    return _refusal(error)[1] or UNEXPECTED


def _refusal(error: Exception) -> tuple[int | None, str]:
    """The status and the text of an error of Werkzeug; else None and ""."""
    # Werkzeug is imported by the first request that needs it, on another thread. Before that its errors do not exist,
    # and to import it here as well could give both threads half of it.
    kind = getattr(sys.modules.get("werkzeug.exceptions"), "HTTPException", ())
    return (error.code, error.name) if isinstance(error, kind) else (None, "")


def error_reply(
    error: Exception,
    status: int,
    mime: str,
    environ: Environ,
    *,
    hints: ErrorHints = ErrorHints.FIELD,
    has_hint_field: bool = True,
) -> Reply:
    """A reply with the body `{"error": message}`, and the hint and the request's id in headers.

    With FIELD and `has_hint_field` the body of an error that has a hint is `{"error": message, "hint": hint}`; with
    TEXT the message ends with it, since clients like `tritonclient` show nothing else. An event has no field for it.
    """
    headers = extra_headers(error, environ, hints)
    if AS_EVENT_KEY in environ:
        events = environ[AS_EVENT_KEY]
        if events is None:
            return text_reply(status, error_event(error, hints), EVENT_STREAM, headers)
        return Reply(status, [("Content-Type", EVENT_STREAM), UNBUFFERED, *headers], events)
    return text_reply(status, orjson.dumps(error_document(error, hints, has_hint_field=has_hint_field)), mime, headers)


def error_document(error: Exception, hints: ErrorHints, *, has_hint_field: bool = True) -> dict[str, str]:
    """The members that tell a client of an error. `has_hint_field` is that of `error_reply`."""
    document = {"error": readable(message_of(error, hints))}
    if has_hint_field and hints is ErrorHints.FIELD and isinstance(error, ServerError) and error.hint:
        document["hint"] = readable(error.hint[:_LONGEST_HEADER])
    return document


def error_event(error: Exception, hints: ErrorHints = ErrorHints.FIELD) -> bytes:
    return event(orjson.dumps({"error": readable(message_of(error, hints))}))


def extra_headers(error: Exception, environ: Environ, hints: ErrorHints) -> Headers:
    """The headers of the reply to a request that failed: the hint, the request's id, and what the status asks for."""
    headers: Headers = []
    if isinstance(error, ServerError) and error.hint and hints is not ErrorHints.OFF:
        headers.append((HINT_HEADER, header_value(error.hint)))
    request_id = environ.get(REQUEST_ID_KEY)
    if request_id:
        headers.append((REQUEST_ID_HEADER, header_value(request_id)))
    if isinstance(error, ServerError) and error.retry_after_s is not None:
        headers.append(("Retry-After", str(error.retry_after_s)))
    if isinstance(error, UnsupportedEncoding):
        headers.append(("Accept-Encoding", "gzip, deflate"))
    elif isinstance(error, Unauthenticated):
        headers.append(("WWW-Authenticate", error.challenge))
    elif isinstance(error, MethodNotAllowed):
        headers.append(("Allow", ", ".join(error.allowed)))
    return headers


def header_value(text: str) -> str:
    """`text` as a header value: one line of Latin-1, of bounded length."""
    line = _CONTROL.sub(" ", text[:_LONGEST_HEADER]).strip()
    return line.encode("latin-1", "replace").decode("latin-1")


def log_error(error: Exception, status: int, environ: Environ) -> None:
    """Log one line for a client's mistake or an overload, and a traceback for a fault in the server. The console keeps
    refused requests. A probe of a model that was never requested counts as neither.

    The traceback of a 503 or 501 says nothing (a full queue is answered from a callback), and writing one for each
    request would add to an overload.
    """
    if isinstance(error, ModelCold):
        return
    path = request_path(environ)
    message = error.log_text if isinstance(error, ServerError) else _refusal(error)[1] or repr(error)
    hint = error.hint if isinstance(error, ServerError) else None
    if (is_refusal(error) or _refusal(error)[0]) and not path.startswith(_CONSOLE):
        note = environ.get(INFERENCE_KEY)
        note_refusal(f"{environ['REQUEST_METHOD']} {path}", note.model if note else "", status, message, hint)
    is_fault = status == _BROKEN and not (isinstance(error, ServerError) and error.blames_client)
    level = logging.ERROR if is_fault else logging.WARNING if status > _BROKEN else logging.INFO
    is_poll = path.startswith(_CONSOLE) and environ["REQUEST_METHOD"] == "GET" and level == logging.INFO
    if is_poll or not _logger.isEnabledFor(level):
        return
    request_id = environ.get(REQUEST_ID_KEY, "")
    _logger.log(
        level,
        "%s %s: %d %s%s%s",
        environ["REQUEST_METHOD"],
        path,
        status,
        # A message may quote the whole body.
        message[:_LONGEST_LOGGED],
        f" (hint: {hint[:_LONGEST_LOGGED]})" if hint else "",
        f" (request id: {request_id[:_LONGEST_LOGGED]})" if request_id else "",
        exc_info=error if is_fault and has_telling_traceback(error) else None,
        extra={"code": status, "hint": hint, "request_id": request_id},
    )
