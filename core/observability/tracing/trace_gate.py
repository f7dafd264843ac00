"""What a front end knows of tracing before it has a request."""

from __future__ import annotations


class TraceGate:
    """Front ends read it for each request, so it has nothing but two flags.

    `is_open`: requests may be traced, so the times at which they arrive are noted. `reads_context`: a client's own
    trace may go on here.
    """

    __slots__ = ("is_open", "reads_context")

    def __init__(self) -> None:
        self.is_open = False
        self.reads_context = False
