"""Error responses of the worker itself, to requests that cannot be given to an application.

Source: docs/spec/http.md sections 1, 6 and 7; RFC 9110 section 15.
"""

from __future__ import annotations

import json

_MAX_INT32 = 2**31 - 1
_CONTENT_LENGTH_RANGE = "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {}"
TOO_MANY_CHUNKS = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
BODY_TOO_LARGE = "request body exceeds the maximum allowed size of {} bytes"
PLAIN_TEXT = "this port has TLS: begin the address with https://"
NO_MEMORY = "not enough memory to receive a request body of {} bytes"

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    414: "URI Too Long",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class Refusal(Exception):
    """The request is answered with `status` and `{"error": message}`, and then the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @classmethod
    def of(cls, status: int, fault: str) -> Refusal:
        """The refusal of a request that is not well-formed: its message begins with the status in words."""
        return cls(status, f"{_REASONS[status]}: {fault}")

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
