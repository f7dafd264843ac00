"""The front end's part of a request's trace: the client's trace context, and when it was received and answered.

Source: docs/spec/trace-and-log.md sections 3 and 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trident.core.inference.request import RequestTrace
from trident.core.observability.tracing.trace import parse_traceparent

if TYPE_CHECKING:
    from trident.core.engine.protocol import Engine

# Nanoseconds of the monotonic clock at the start and at the end; 0 for a time that was not noted.
Span = tuple[int, int]
NOT_NOTED: Span = (0, 0)
# Characters: what every program must pass on; longer ones are left out.
_LONGEST_STATE = 512


class EventNames(NamedTuple):
    """The names of the events of one protocol."""

    received: tuple[str, str]
    sent: tuple[str, str]


HTTP = EventNames(("HTTP_RECV_START", "HTTP_RECV_END"), ("HTTP_SEND_START", "HTTP_SEND_END"))
GRPC = EventNames(("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"), ("GRPC_SEND_START", "GRPC_SEND_END"))


def client_trace(traceparent: str | None, tracestate: str | None) -> RequestTrace | None:
    """The trace that the client of a request has begun; None without a valid one."""
    if traceparent is None or parse_traceparent(traceparent) is None:
        return None
    state = tracestate or ""
    return RequestTrace(traceparent=traceparent.strip(), tracestate=state if len(state) <= _LONGEST_STATE else "")


def end_trace(engine: Engine, number: int, names: EventNames, received: Span, sent: Span = NOT_NOTED) -> None:
    """Report that the request of trace `number` was answered. `sent` is NOT_NOTED if its client has gone."""
    engine.trace_answered(number, _events(names.received, received), _events(names.sent, sent))


def _events(names: tuple[str, str], times: Span) -> list[tuple[str, int]]:
    return [(name, ns) for name, ns in zip(names, times, strict=True) if ns]
