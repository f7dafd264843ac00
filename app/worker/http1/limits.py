"""What a connection may take: seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of every connection. Source: docs/spec/http.md section 7 for the size of a body (a signed 32-bit number).

    `request_timeout_s`: a client that sends no byte of the request it began, or reads no byte of its response, for this
    long is dropped; a head must be whole within it. `keepalive_s`: an idle connection is closed after it.
    """

    request_timeout_s: float = 60.0
    keepalive_s: float = 600.0
    max_body_size: int = 2**31 - 1
