"""The trace to which a request belongs: plain data, which can be sent over a process boundary as it is.

Source: docs/spec/trace-and-log.md sections 2 and 4.
"""

from __future__ import annotations

from typing import NamedTuple


class RequestTrace(NamedTuple):
    """`number` is that of a trace in the engine: of the request's own if `has_begun`, otherwise of the request that led
    to it; 0 for a request that only brings the W3C context of its client. `traceparent` and `tracestate` are that
    context, and later that of the request's own trace, "" without one.
    """

    number: int = 0
    has_begun: bool = False
    traceparent: str = ""
    tracestate: str = ""

    def child(self) -> RequestTrace:
        """For a request that this one leads to."""
        return RequestTrace(self.number)
