"""The trace to which a request belongs: plain data, which can be sent over a process boundary as it is.

Source: docs/spec/trace-and-log.md sections 2 and 4.
"""

from __future__ import annotations

import json
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

    def context_json(self) -> str | None:
        """The W3C context as Triton gives it to models; None without one."""
        if not self.traceparent:
            return None
        context = {"traceparent": self.traceparent}
        if self.tracestate:
            context["tracestate"] = self.tracestate
        return json.dumps(context, separators=(",", ":"))

    def child(self) -> RequestTrace:
        """For a request that this one leads to."""
        return RequestTrace(self.number)
