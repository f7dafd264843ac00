"""The limits of a connection, in seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """Seconds of unready service before the listeners close, and then seconds for the requests in flight."""

    drain_grace_s: float = 0.0
    exit_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of every connection. Source: docs/spec/http.md section 7 for the size of a body (a signed 32-bit number).

    A client that sends no byte of a request it began, or reads no byte of its response, for `request_timeout_s` is
    disconnected; a request head must be complete within that time. An idle connection is closed after `keepalive_s`.
    """

    request_timeout_s: float = 60.0
    keepalive_s: float = 600.0
    max_body_size: int = 2**31 - 1
