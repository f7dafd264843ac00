"""gRPC's rule for the distance of a client's pings."""

from __future__ import annotations

from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault
from app.worker.http2.limits import Http2Limits


class PingStrikes:
    """Counts pings that come too early. Each answer of the server forgets them all.

    Source: gRPC's proposal A8; `Chttp2PingAbusePolicy` of its C core.
    """

    __slots__ = ("_answers", "_latest", "_limits", "_strikes")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._strikes = 0
        self._latest: float | None = None
        self._answers = 0

    def count(self, now: float, answers: int, *, idle: bool) -> None:
        """A ping came at `now`, in seconds. `answers` is their number so far, `idle` that no stream is open.

        Raises ConnectionFault, with the text by which gRPC's clients know that they must ping less.
        """
        if answers != self._answers:
            self._answers, self._strikes, self._latest = answers, 0, None
        limits = self._limits
        interval = limits.ping_interval_idle_s if idle else limits.ping_interval_s
        if self._latest is not None and now - self._latest < interval:
            self._strikes += 1
            if limits.ping_strikes and self._strikes > limits.ping_strikes:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self._latest = now
