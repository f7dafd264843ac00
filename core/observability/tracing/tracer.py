"""The tracer of the engine: decides which requests are traced, and collects their events.

Source: docs/spec/trace-and-log.md sections 1 and 2.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Sequence

from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InferenceTimes, RequestTrace
from trident.core.inference.response import InferenceResponse, OnResponse, RegionInput
from trident.core.inference.tensors import Buffer, wire_bytes
from trident.core.observability.switches import TraceGate
from trident.core.observability.tracing.files import Destination, RecentTraces, TraceFiles, TraceThread
from trident.core.observability.tracing.settings import (
    TENSORS,
    TIMESTAMPS,
    Changes,
    Setting,
    TraceMode,
    TraceOptions,
    TraceSettings,
    TraceTable,
    shown_settings,
)
from trident.core.observability.tracing.trace import (
    Trace,
    TraceCounts,
    TracedTensor,
    TraceEvent,
    TraceMetrics,
    TraceRecord,
    TraceSpanContext,
    parse_traceparent,
    traceparent_of,
)

# Bytes of a tensor that are kept; what is longer is shown from its beginning.
_MOST_SHOWN = 1 << 20


class TracedResponses:
    """Takes the place of the request's `on_response`, so that only requests that are traced pay for it."""

    __slots__ = ("_has_responded", "_is_composed", "_on_response", "_pending", "_trace", "_tracer")

    def __init__(self, tracer: Tracer, trace: Trace, pending: PendingRequest, *, is_composed: bool) -> None:
        """`is_composed`: the model is an ensemble, which executes nothing itself."""
        self._tracer = tracer
        self._trace = trace
        self._pending = pending
        self._on_response: OnResponse = pending.on_response
        self._is_composed = is_composed
        self._has_responded = False
        if TENSORS in trace.setting.levels:
            note_inputs(trace, pending.request)

    def respond(self, response: InferenceResponse) -> None:
        """Note the response and pass it on. Any thread, one at a time."""
        trace = self._trace
        if trace.parent is None:
            response.trace = trace.number
        now_ns = time.monotonic_ns()
        if not self._has_responded:
            self._has_responded = True
            trace.events.append(("INFER_RESPONSE_COMPLETE", now_ns))
        if response.outputs and TENSORS in trace.setting.levels:
            note_outputs(trace, response)
        if response.final:
            self._end(response.times, now_ns)
        self._on_response(response)

    def _end(self, times: InferenceTimes | None, now_ns: int) -> None:
        trace, pending = self._trace, self._pending
        if pending.enqueue_ns >= trace.begun_ns:
            trace.events.append(("QUEUE_START", pending.enqueue_ns))
        # A response from the cache has only the time of looking it up.
        if times is not None and times.compute_infer_ns and not self._is_composed:
            at_ns = pending.enqueue_ns + times.queue_ns
            for name, duration_ns in (
                ("COMPUTE_START", times.compute_input_ns),
                ("COMPUTE_INPUT_END", times.compute_infer_ns),
                ("COMPUTE_OUTPUT_START", times.compute_output_ns),
                ("COMPUTE_END", 0),
            ):
                trace.events.append((name, at_ns))
                at_ns += duration_ns
        trace.events.append(("REQUEST_END", now_ns))
        trace.events.sort(key=_when)  # which keeps the order of what happened at once
        self._tracer.end(trace)


def _when(event: tuple[str, int]) -> int:
    return event[1]


def note_inputs(trace: Trace, request: InferenceRequest) -> None:
    """Record the inputs as they are queued, except those in shared memory, which are read only once."""
    for tensor in request.inputs:
        if isinstance(tensor, RegionInput):
            continue
        content = tensor.data
        if not isinstance(content, memoryview):
            content = memoryview(wire_bytes(content))
        _note(trace, "TENSOR_QUEUE_INPUT", tensor.name, tensor.datatype, tensor.shape, content)


def note_outputs(trace: Trace, response: InferenceResponse) -> None:
    """Record the outputs as the model returned them."""
    for tensor in response.outputs:
        _note(trace, "TENSOR_BACKEND_OUTPUT", tensor.name, tensor.datatype, tensor.shape, tensor.content())


def _note(trace: Trace, activity: str, name: str, datatype: str, shape: tuple[int, ...], content: Buffer) -> None:
    shown = bytes(memoryview(content)[:_MOST_SHOWN])
    trace.tensors.append(TracedTensor(activity, name, datatype, shape, shown))


_log = logging.getLogger("trident.trace")

# A front end that has ended never says when it sent an answer; nor does one under another server than ours.
_ANSWER_NS = 10 * 1_000_000_000
_MOST_UNANSWERED = 4096


class Tracer:
    """Any thread may call any method. Only traced requests take a lock.

    A trace begins with the first `begin` of a request of a client. It is complete when that request and those that its
    models made have ended, and the front end has said when it sent the answer.
    """

    def __init__(self, options: TraceOptions) -> None:
        self._options = options
        self.gate = TraceGate()
        self._has_spans = options.mode is TraceMode.OPENTELEMETRY
        self._counts = TraceCounts()
        self._recent = RecentTraces(options.kept, self._destination())
        self._writer = TraceThread(self._recent, self._counts, self._give_up_waiting)
        self._numbers = itertools.count(*options.numbers)
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._table = TraceTable(options.start, has_destination=options.has_destination)
        self._setting = self._made(options.start)
        self._model_settings: dict[str, Setting] = {}
        self._open: dict[int, Trace] = {}
        # The roots that have ended and are not answered, with when they ended, the oldest first.
        self._unanswered: dict[int, int] = {}
        # ---
        self._look_at_levels()

    def _destination(self) -> Destination | None:
        """None if traces only stay in memory."""
        if not self._has_spans:
            only_kept = self._options.kept and not self._options.file
            return None if only_kept else TraceFiles(self._options.file, self._counts)
        from trident.core.observability.tracing.opentelemetry import SpanExporter

        return SpanExporter(self._options.export, self._counts)

    # --- the settings

    def settings(self, model: str = "") -> dict[str, list[str] | str]:
        """Return the effective settings of `model`, or of all models without their own, as clients see them."""
        setting = self._setting_of(model)
        return shown_settings(setting.settings, setting.sampler.left, self._options)

    def change(self, model: str, changes: Changes) -> None:
        """Change the settings of `model`, "" for the server's. Raises InvalidRequest; then nothing has changed.

        Counting begins anew, and what was kept of the former settings is written.
        """
        with self._lock:
            self._table.change(model, changes)
            replaced = [self._model_settings.pop(model, None)]
            if not model:
                replaced = [self._setting, *self._model_settings.values()]
                self._model_settings.clear()
                self._setting = self._made(self._table.of())
            for name in self._table.models:
                if name not in self._model_settings:
                    self._model_settings[name] = self._made(self._table.of(name))
            self._look_at_levels()
            for setting in replaced:
                if setting is not None:
                    setting.is_replaced = True
                    if not setting.in_flight:
                        self._writer.put(setting)

    def _made(self, settings: TraceSettings) -> Setting:
        if not self._has_spans:
            return Setting(settings)
        if TENSORS in settings.levels:
            _log.error("the trace level TENSORS is not supported in the mode opentelemetry")
        return Setting(settings, (TIMESTAMPS,))

    def _setting_of(self, model: str) -> Setting:
        return self._model_settings.get(model, self._setting)

    def _look_at_levels(self) -> None:
        settings = (self._setting, *self._model_settings.values())
        is_on = any(setting.levels for setting in settings)
        if is_on:
            self._writer.start()
        # The requests that models make for one that is traced are traced as well, though tracing was switched off.
        self.gate.is_open = is_on or bool(self._open)
        self.gate.reads_context = is_on and self._has_spans

    # --- requests

    def begin(self, pending: PendingRequest, model: str, version: int, *, is_composed: bool = False) -> None:
        """Start tracing a request that is submitted to a model, if it is sampled."""
        request = pending.request
        given = request.trace
        if given is None:
            # Nearly all requests end here while some are sampled.
            if pending.is_nested or not self._setting_of(model).sampler.sample():
                return
        elif given.has_begun:
            return
        now_ns = time.monotonic_ns()
        trace = Trace(0, model, version, request.id, now_ns, self._setting_of(model))
        if given is None:
            self._add_root(trace, None)
        elif given.number:
            if not self._add_child(trace, given.number):
                return
        elif pending.is_nested or not self._follows(trace, given):
            return
        trace.events.append(("REQUEST_START", now_ns))
        request.trace = self._noted(trace)
        pending.wants_times = True
        pending.on_response = TracedResponses(self, trace, pending, is_composed=is_composed).respond

    def _follows(self, trace: Trace, given: RequestTrace) -> bool:
        """Start the trace if the client traces the request or it is sampled. Returns whether it did."""
        setting = trace.setting
        if not setting.levels:
            return False
        context = parse_traceparent(given.traceparent) if self._has_spans else None
        if context is None and not setting.sampler.sample():
            return False
        self._add_root(trace, given, context)
        return True

    def _add_root(self, trace: Trace, given: RequestTrace | None, context: tuple[int, int] | None = None) -> None:
        """Begin the trace of a client's request; `context` is the trace and the span of the client, if it traces."""
        setting = trace.setting
        if self._has_spans:
            trace_id, parent = context or (random.getrandbits(128) or 1, 0)
            trace.context = TraceSpanContext(
                trace_id, _span_id(), parent, given.tracestate if given and context else ""
            )
            trace.span = _span_id()
        trace.number = next(self._numbers)
        with self._lock:
            self._open[trace.number] = trace
            setting.in_flight += 1

    def _add_child(self, trace: Trace, number: int) -> bool:
        with self._lock:
            parent = self._open.get(number)
            if parent is None:
                return False
            trace.number = next(self._numbers)
            trace.parent = parent
            trace.root = root = parent.root
            trace.setting = root.setting
            trace.context = root.context
            trace.span = _span_id() if self._has_spans else 0
            root.open_parts += 1
            parent.children.append(trace)
            self._open[trace.number] = trace
        return True

    def _noted(self, trace: Trace) -> RequestTrace:
        context = trace.context
        if context is None:
            return RequestTrace(trace.number, has_begun=True)
        return RequestTrace(trace.number, True, traceparent_of(context.trace, trace.span), context.state)

    def end(self, trace: Trace) -> None:
        """A request of a trace has its final response."""
        root = trace.root
        with self._lock:
            root.open_parts -= 1
            if root.open_parts:
                return
            if not root.is_answered:
                self._unanswered[root.number] = time.monotonic_ns()
                if len(self._unanswered) <= _MOST_UNANSWERED:
                    return
                root = self._open[next(iter(self._unanswered))]
            self._complete(root)

    def answered(self, number: int, ahead: Sequence[TraceEvent], behind: Sequence[TraceEvent]) -> None:
        """The front end has sent the answer to the request of trace `number`: what it noted before and after."""
        with self._lock:
            root = self._open.get(number)
            if root is None or root.parent is not None:
                return
            root.ahead, root.behind = tuple(ahead), tuple(behind)
            root.is_answered = True
            if not root.open_parts:
                self._complete(root)

    def _complete(self, root: Trace) -> None:
        """Under the lock."""
        self._unanswered.pop(root.number, None)
        for trace in root.family():
            self._open.pop(trace.number, None)
        setting = root.setting
        setting.in_flight -= 1
        self._writer.put(root)
        if not setting.in_flight:
            if setting.is_replaced:
                self._writer.put(setting)
            elif not setting.sampler.left:
                # The last of a trace_count: clients that see it at 0 look for the file.
                self._writer.hasten()
        if not self._open:
            self._look_at_levels()

    def _give_up_waiting(self) -> None:
        """Complete the traces that no front end has answered for a while."""
        oldest_ns = time.monotonic_ns() - _ANSWER_NS
        with self._lock:
            for number, ended_ns in list(self._unanswered.items()):
                if ended_ns > oldest_ns:
                    break
                self._complete(self._open[number])

    def recent(self) -> list[tuple[TraceRecord, ...]]:
        """Return the traces that are kept in memory; see RecentTraces."""
        return self._recent.last()

    # --- the end

    def metrics(self) -> TraceMetrics | None:
        """None if nothing can be traced."""
        return self._counts.metrics() if self._options.has_destination else None

    def close(self) -> None:
        """Write what was traced so far. Blocks, at most ten seconds."""
        with self._lock:
            for number in list(self._unanswered):
                self._complete(self._open[number])
            for setting in (self._setting, *self._model_settings.values()):
                self._writer.put(setting)
        self._writer.close()


def _span_id() -> int:
    return random.getrandbits(64) or 1
