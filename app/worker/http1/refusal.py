"""Error responses of the worker itself, to requests that cannot be given to an application.

Source: docs/spec/http.md sections 1, 6 and 7; the statuses are gunicorn's own (`Worker.handle_error`).
"""

from __future__ import annotations

import json

import gunicorn_h1c
from gunicorn.http import errors

_MAX_INT32 = 2**31 - 1
_CONTENT_LENGTH_RANGE = "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {}"
TOO_MANY_CHUNKS = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
BODY_TOO_LARGE = "request body exceeds the maximum allowed size of {} bytes"
PLAIN_TEXT = "this port has TLS: begin the address with https://"
NO_MEMORY = "not enough memory to receive a request body of {} bytes"

_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    414: "URI Too Long",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
# The most specific class comes first; a class that is not listed is a 400.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.LimitRequestLine, 414),
    (errors.LimitRequestHeaders, 431),
    (errors.UnsupportedTransferCoding, 501),
    (errors.ExpectationFailed, 417),
    (errors.ForbiddenProxyRequest, 403),
    (errors.ConfigurationProblem, 500),
    (gunicorn_h1c.LimitRequestLine, 414),
    (gunicorn_h1c.LimitRequestHeaders, 431),
)


class Refusal(Exception):
    """The request is answered with `status` and `{"error": message}`, and then the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """The refusal for an error of gunicorn's parsers."""
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 400)
        return cls(status, f"{_REASONS[status]}: {error}")

    def response(self) -> bytes:
        """The whole HTTP response."""
        body = json.dumps({"error": self.message}, separators=(",", ":")).encode()
        head = (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\n"
            "Content-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body


def check_length(length: int, max_size: int) -> None:
    """Raise Refusal for a Content-Length that exceeds `max_size` or a signed 32-bit number."""
    if length > _MAX_INT32:
        raise Refusal(400, _CONTENT_LENGTH_RANGE.format(length))
    if length > max_size:
        raise Refusal(400, BODY_TOO_LARGE.format(max_size))
