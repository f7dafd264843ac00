"""Bounds what a client may do that brings nothing forward."""

from __future__ import annotations

from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault


class FloodGuard:
    """A budget of frames that cost work and bring nothing forward: resets, pings, settings, empty frames.

    `burst` of them are allowed in a row, and `rate` more each second, and one for each answer. A client that cancels
    many of its calls gets as many answers besides; one that only opens and resets streams gets none. `left` is what may
    still be spent before `spend` looks at the time.
    """

    __slots__ = ("_answers", "_at", "_burst", "_rate", "left")

    def __init__(self, burst: int, rate: int, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self.left = float(burst)
        self._at = now
        self._answers = 0

    def spend(self, what: str, now: float, answers: int, cost: float = 1.0) -> None:
        """Count one frame. `now` is in seconds, `answers` their number so far. Raises ConnectionFault."""
        self.left -= cost
        if self.left >= 0:
            return
        gained = (now - self._at) * self._rate + answers - self._answers
        self._at, self._answers = now, answers
        self.left = min(self.left + gained, self._burst)
        if self.left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")
