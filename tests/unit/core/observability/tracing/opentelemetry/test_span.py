from __future__ import annotations

from tests.unit.core.observability.tracing.traces import child_of, setting_of, trace_of
from trident.core.observability.tracing.opentelemetry import spans_of
from trident.core.observability.tracing.trace import Trace, TraceSpanContext

CONTEXT = TraceSpanContext(trace=1, root_span=10, parent_span=9, state="")


def with_span(trace: Trace, number: int) -> Trace:
    trace.context, trace.span = CONTEXT, number
    return trace


def test_a_request_that_failed_has_no_execution() -> None:
    root = with_span(trace_of(1, setting_of(), request_id="r"), 11)
    spans = list(spans_of(root))
    assert [(span.name, span.number, span.parent) for span in spans] == [("InferRequest", 10, 9), ("m", 11, 10)]
    # Without a front end the request lasts as long as its model.
    assert (spans[0].start_ns, spans[0].end_ns, spans[0].events) == (10, 20, ())
    assert spans[1].attributes == {
        "triton.model_name": "m",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }


def test_every_event_belongs_to_one_span() -> None:
    root = with_span(trace_of(1, setting_of(), model="pipeline"), 11)
    root.ahead, root.behind = (("HTTP_RECV_START", 1),), (("HTTP_SEND_END", 30),)
    root.events.insert(1, ("INFER_RESPONSE_COMPLETE", 19))
    child = with_span(child_of(root, 2, model="step"), 12)
    child.events[1:1] = [("QUEUE_START", 11), ("COMPUTE_START", 12), ("COMPUTE_END", 15)]
    request, pipeline, step, compute = spans_of(root)
    assert [name for name, _ in request.events] == ["HTTP_RECV_START", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_END"]
    assert (request.start_ns, request.end_ns) == (1, 30)
    assert [name for name, _ in pipeline.events] == ["REQUEST_START", "REQUEST_END"]
    assert [name for name, _ in step.events] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert (step.parent, step.attributes["triton.trace_parent_id"]) == (11, 1)
    assert (compute.parent, compute.start_ns, compute.end_ns) == (12, 12, 15)
