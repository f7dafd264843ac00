"""The times of a graceful stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """Seconds of unready service before the listeners close, and then seconds for the requests in flight."""

    drain_grace_s: float = 0.0
    exit_timeout_s: float = 30.0
