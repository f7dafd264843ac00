"""What a front end adds to the trace of a request: when it received the request, and when it sent the answer.

Source: docs/spec/trace-and-log.md section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from core.engine.protocol import Engine

# Nanoseconds of the monotonic clock at the start and at the end; 0 for a time that was not noted.
Span = tuple[int, int]
NOT_NOTED: Span = (0, 0)


class EventNames(NamedTuple):
    """The names of the events of one protocol."""

    received: tuple[str, str]
    sent: tuple[str, str]


HTTP = EventNames(("HTTP_RECV_START", "HTTP_RECV_END"), ("HTTP_SEND_START", "HTTP_SEND_END"))
GRPC = EventNames(("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"), ("GRPC_SEND_START", "GRPC_SEND_END"))


def end_trace(engine: Engine, number: int, names: EventNames, received: Span, sent: Span = NOT_NOTED) -> None:
    """Say that the request of trace `number` was answered. `sent` is left out if its client has gone."""
    engine.trace_answered(number, _events(names.received, received), _events(names.sent, sent))


def _events(names: tuple[str, str], times: Span) -> list[tuple[str, int]]:
    return [(name, ns) for name, ns in zip(names, times, strict=True) if ns]
