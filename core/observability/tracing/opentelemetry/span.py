"""The spans of a request, as Triton names them. Source: docs/spec/trace-and-log.md section 4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from core.observability.tracing.trace import Event, SpanContext, Trace

ROOT = "InferRequest"
COMPUTE = "compute"
_MODEL_EVENTS = frozenset({"REQUEST_START", "QUEUE_START", "REQUEST_END"})
_COMPLETE = "INFER_RESPONSE_COMPLETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`number` is the id of the span, 0 for one that nobody refers to, and `parent` that of the span above, 0 without
    one. Times are nanoseconds of the monotonic clock.
    """

    name: str
    context: SpanContext
    number: int
    parent: int
    start_ns: int
    end_ns: int
    events: tuple[Event, ...]
    attributes: dict[str, str | int] = field(default_factory=dict)


def spans_of(root: Trace) -> Iterator[Span]:
    """The spans of a request and of those that it led to, each before those below it."""
    context = root.context
    assert context is not None
    own = [event for event in root.events if event[0] == _COMPLETE]
    yield _span(ROOT, context, context.root_span, context.parent_span, root, (*root.ahead, *own, *root.behind))
    for trace in root.family():
        above = context.root_span if trace.parent is None else trace.parent.span
        events = tuple(event for event in trace.events if event[0] in _MODEL_EVENTS)
        yield _span(trace.model_name, context, trace.span, above, trace, events, _attributes(trace))
        computed = tuple(event for event in trace.events if event[0].startswith("COMPUTE_"))
        if computed:
            yield _span(COMPUTE, context, 0, trace.span, trace, computed)


def _span(
    name: str,
    context: SpanContext,
    number: int,
    parent: int,
    trace: Trace,
    events: tuple[Event, ...],
    attributes: dict[str, str | int] | None = None,
) -> Span:
    times = [ns for _, ns in events] or [trace.begun_ns]
    if name is ROOT:  # it lasts as long as its model's span, also without events of a front end
        times += [ns for _, ns in trace.events]
    return Span(
        name=name,
        context=context,
        number=number,
        parent=parent,
        start_ns=min(times),
        end_ns=max(times),
        events=events,
        attributes=attributes or {},
    )


def _attributes(trace: Trace) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "triton.model_name": trace.model_name,
        "triton.model_version": trace.model_version,
        "triton.trace_id": trace.number,
        "triton.trace_parent_id": trace.parent.number if trace.parent is not None else 0,
    }
    if trace.request_id:
        attributes["triton.request_id"] = trace.request_id
    return attributes
