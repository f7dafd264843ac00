"""Flags that a process may change while it serves. The hot path reads attributes and makes no calls."""

from __future__ import annotations

from typing import Final


class Switches:
    """`requests`: each request is logged as it arrives. `access`: each is logged after its answer, and `probes`, those
    of health and metrics, too. `timing`: clients get the times of their answers. `times`: answers carry them, for the
    clients or for the access log. `histograms`: versions keep histograms of the durations."""

    __slots__ = ("access", "histograms", "probes", "requests", "times", "timing")

    def __init__(self) -> None:
        self.set()

    def set(self, *, verbose: int = 0, access: str = "false", timing: bool = False, histograms: bool = False) -> None:
        """The highest verbose level shown, the values of --log-access and --response-timing, and that of
        histogram_latencies."""
        self.requests = verbose > 0
        self.access = access != "false"
        self.probes = access == "all"
        self.timing = timing
        self.times = timing or self.access
        self.histograms = histograms


SWITCHES: Final = Switches()
"""The switches of this process, which follow the log settings."""


class TraceGate:
    """Front ends read it for each request, so it has nothing but two flags.

    `is_open`: requests may be traced, so the times at which they arrive are noted. `reads_context`: a client's own
    trace may go on here.
    """

    __slots__ = ("is_open", "reads_context")

    def __init__(self) -> None:
        self.is_open = False
        self.reads_context = False
