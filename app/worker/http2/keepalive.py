"""Whether a silent client is still there."""

from __future__ import annotations

from app.worker.http2 import frames
from app.worker.http2.limits import Http2Limits


class Keepalive:
    """Asks a client for a sign of life. Times are in seconds. Source: gRPC's `keepalive.md`."""

    __slots__ = ("_asked", "_limits")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._asked: float | None = None

    def due(self, now: float, last_received: float, *, idle: bool) -> bytes:
        """The ping that asks; empty if it is not time. `idle`: no stream is open, so that nothing is at stake."""
        limits = self._limits
        if (
            self._asked is not None
            or now - last_received <= limits.keepalive_s
            or (idle and not limits.keepalive_without_streams)
        ):
            return b""
        self._asked = now
        return frames.frame(frames.PING, 0, 0, b"keepaliv")

    def succeed(self) -> None:
        """The client has answered a ping."""
        self._asked = None

    def has_failed(self, now: float) -> bool:
        """Whether the client has not answered in time."""
        return self._asked is not None and now - self._asked >= self._limits.keepalive_timeout_s
