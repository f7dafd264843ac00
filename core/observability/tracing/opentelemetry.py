"""Sends spans to a collector over OTLP/HTTP, with the batch processor of OpenTelemetry's SDK.

A collector that is slow or gone delays nothing: spans wait in the processor's queue, and those that it has no room for,
or that cannot be sent, are lost and counted. The imports are those of the mode `opentelemetry` alone.
Source: docs/spec/trace-and-log.md section 4.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from trident.core.observability.tracing.trace import ExportOptions, Loss, Setting, Trace, TraceCounts, TraceEvent

ROOT = "InferRequest"
COMPUTE = "compute"
_MODEL_EVENTS = frozenset({"REQUEST_START", "QUEUE_START", "REQUEST_END"})
_COMPLETE = "INFER_RESPONSE_COMPLETE"


_SCOPE = InstrumentationScope("triton-server")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def spans_of(root: Trace, resource: Resource | None = None, offset_ns: int = 0) -> Iterator[ReadableSpan]:
    """The spans of a request and of those that it led to, each before those below it.

    `offset_ns` is the wall clock's time less that of the monotonic clock.
    """
    context = root.context
    assert context is not None
    state = TraceState.from_header([context.state]) if context.state else TraceState()

    def context_of(number: int) -> SpanContext:
        return SpanContext(context.trace, number, is_remote=False, trace_flags=_SAMPLED, trace_state=state)

    def span(
        name: str, number: int, parent: int, times: list[int], events: Sequence[TraceEvent], trace: Trace | None = None
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context=context_of(number),
            parent=context_of(parent) if parent else None,
            resource=resource,
            attributes=_attributes(trace) if trace is not None else {},
            events=[Event(event, timestamp=ns + offset_ns) for event, ns in events],
            kind=SpanKind.SERVER,
            start_time=min(times) + offset_ns,
            end_time=max(times) + offset_ns,
            instrumentation_scope=_SCOPE,
        )

    own = (*root.ahead, *(event for event in root.events if event[0] == _COMPLETE), *root.behind)
    # It lasts as long as its model's span, also without events of a front end.
    yield span(ROOT, context.root_span, context.parent_span, _times(root, *own, *root.events), own)
    for trace in root.family():
        above = context.root_span if trace.parent is None else trace.parent.span
        events = [event for event in trace.events if event[0] in _MODEL_EVENTS]
        yield span(trace.model_name, trace.span, above, _times(trace, *events), events, trace)
        computed = [event for event in trace.events if event[0].startswith("COMPUTE_")]
        if computed:
            yield span(COMPUTE, random.getrandbits(64) or 1, trace.span, _times(trace, *computed), computed)


def _times(trace: Trace, *events: TraceEvent) -> list[int]:
    return [ns for _, ns in events] or [trace.begun_ns]


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


_log = logging.getLogger("trident.trace")

# Seconds for the spans that are still to be sent when the server ends.
_LAST_SECONDS = 3.0


class SpanExporter:
    """Implements Destination."""

    def __init__(self, options: ExportOptions, counts: TraceCounts) -> None:
        self._counts = counts
        self._resource = Resource.create(dict(options.resource))
        self._sender = _CountingSender(options.url, counts)
        self._room = options.queue_size
        # The processor has its own thread. It calls `export` and `shutdown` of what it is given, and nothing else.
        sender: Any = self._sender
        self._processor = BatchSpanProcessor(
            sender,
            max_queue_size=options.queue_size,
            schedule_delay_millis=options.delay_ms,
            max_export_batch_size=min(options.batch_size, options.queue_size),
        )

    def write(self, traces: Sequence[Trace]) -> None:
        # The clock may have been set since the last time.
        offset_ns = time.time_ns() - time.monotonic_ns()
        for trace in traces:
            for span in spans_of(trace, self._resource, offset_ns):
                if self._sender.waiting >= self._room:
                    self._counts.add_lost(Loss.QUEUE_FULL)  # the processor drops the oldest one to make room
                else:
                    self._sender.add_waiting(1)
                self._processor.on_end(span)

    def finish(self, setting: Setting) -> None:
        """Spans are sent as they come: a setting has no rest."""

    def close(self) -> None:
        # The SDK would try for half a minute to reach a collector that is gone.
        ending = threading.Timer(_LAST_SECONDS, self._sender.shutdown)
        ending.daemon = True
        ending.start()
        self._processor.shutdown()
        ending.cancel()
        self._counts.add_lost(Loss.NOT_WRITTEN, self._sender.waiting)
        self._sender.waiting = 0


class _CountingSender:
    """The SDK's exporter, with what the SDK does not tell: how many spans wait for it, and which it could not send.

    `waiting` counts those that were put and that the processor has neither dropped nor given to `export`.
    """

    def __init__(self, url: str, counts: TraceCounts) -> None:
        self._url = url
        self._counts = counts
        self._exporter = OTLPSpanExporter(endpoint=url)
        self._reasons = _Reasons()
        self._lock = threading.Lock()
        self._is_failing = False
        self.waiting = 0

    def add_waiting(self, count: int) -> None:
        with self._lock:
            self.waiting += count

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch. On the processor's thread."""
        count = len(spans)
        self.add_waiting(-count)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._counts.add_written(count)
            if self._is_failing:
                self._is_failing = False
                _log.info("spans are sent to %s again", self._url)
            return result
        self._counts.add_lost(Loss.NOT_WRITTEN, count)
        if not self._is_failing:
            self._is_failing = True
            _log.error("spans cannot be sent to %s: %s; they are lost until they can", self._url, self._reasons.last)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Reasons(logging.Handler):
    """Keeps the last message of the SDK, which would fill the log with one for each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.last = "no answer"
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
