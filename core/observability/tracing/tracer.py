"""The tracer of the engine: decides which requests are traced, collects their events, and passes them to a thread,
which writes Triton's trace files, one with all traces or numbered ones. The last ones stay in memory for the console.

A failure loses the traces that were to be written, is logged once until something can be written again, and counted;
requests are not affected. Source: docs/spec/trace-and-log.md sections 1 to 3.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, Protocol

import numpy as np

from trident.core.borders import guarded
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import RequestTrace
from trident.core.inference.response import InferenceResponse, OnResponse, RegionInput
from trident.core.inference.tensors import BY_NAME, BYTES, Buffer, wire_bytes
from trident.core.observability.switches import TraceGate
from trident.core.observability.tracing.trace import (
    TENSORS,
    TIMESTAMPS,
    UNLIMITED,
    Changes,
    Loss,
    Setting,
    Trace,
    TraceCounts,
    TracedTensor,
    TraceEvent,
    TraceMetrics,
    TraceMode,
    TraceOptions,
    TraceRecord,
    TraceSettings,
    TraceSpanContext,
    TraceTable,
    parse_traceparent,
    shown_settings,
    traceparent_of,
)

_log = logging.getLogger("trident.trace")

# Bytes of a tensor in a trace; a longer one is shown from its beginning.
_MOST_SHOWN = 1 << 20


def _when(event: TraceEvent) -> int:
    return event[1]


def _note(trace: Trace, activity: str, name: str, datatype: str, shape: tuple[int, ...], content: Buffer) -> None:
    shown = bytes(memoryview(content)[:_MOST_SHOWN])
    trace.tensors.append(TracedTensor(activity, name, datatype, shape, shown))


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
        self._recent: deque[tuple[TraceRecord, ...]] = deque(maxlen=options.kept)
        self._writer = TraceThread(self._destination(), self._recent, self._counts, self._give_up_waiting)
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
        setting = self._setting_of(model)
        return shown_settings(setting.settings, setting.left, self._options)

    def change(self, model: str, changes: Changes) -> None:
        """Change the settings of `model`, "" for the server's. Raises InvalidRequest; then nothing has changed.

        Counting begins anew, and the collected traces of the former settings are written.
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
        request = pending.request
        given = request.trace
        if given is None:
            # Nearly all requests end here while some are sampled.
            if pending.is_nested or not self._setting_of(model).sample():
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
        context = trace.context
        request.trace = RequestTrace(trace.number, has_begun=True)
        if context is not None:
            request.trace = RequestTrace(trace.number, True, traceparent_of(context.trace, trace.span), context.state)
        pending.wants_times = True
        if TENSORS in trace.setting.levels:
            for tensor in request.inputs:
                if not isinstance(tensor, RegionInput):
                    content = tensor.data
                    if not isinstance(content, memoryview):
                        content = memoryview(wire_bytes(content))
                    _note(trace, "TENSOR_QUEUE_INPUT", tensor.name, tensor.datatype, tensor.shape, content)
        pending.on_response = partial(self._respond, trace, pending, is_composed, pending.on_response)

    def _respond(
        self,
        trace: Trace,
        pending: PendingRequest,
        is_composed: bool,
        on_response: OnResponse,
        response: InferenceResponse,
    ) -> None:
        """Note the response and pass it on. Any thread, one at a time."""
        guarded(partial(self._note_response, trace, pending, is_composed, response), "tracing a response")
        on_response(response)

    def _note_response(
        self, trace: Trace, pending: PendingRequest, is_composed: bool, response: InferenceResponse
    ) -> None:
        if trace.parent is None:
            response.trace = trace.number
        now_ns = time.monotonic_ns()
        if not trace.has_responded:
            trace.has_responded = True
            trace.events.append(("INFER_RESPONSE_COMPLETE", now_ns))
        if response.outputs and TENSORS in trace.setting.levels:
            for tensor in response.outputs:  # as the model returned them
                content = tensor.content()
                _note(trace, "TENSOR_BACKEND_OUTPUT", tensor.name, tensor.datatype, tensor.shape, content)
        if not response.final:
            return
        if pending.enqueue_ns >= trace.begun_ns:
            trace.events.append(("QUEUE_START", pending.enqueue_ns))
        times = response.times
        # A response from the cache has only the time of looking it up.
        if times is not None and times.compute_infer_ns and not is_composed:  # an ensemble executes nothing itself
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
        self._end(trace)

    def _follows(self, trace: Trace, given: RequestTrace) -> bool:
        """Start the trace if the client traces the request or it is sampled. Returns whether it did."""
        setting = trace.setting
        if not setting.levels:
            return False
        context = parse_traceparent(given.traceparent) if self._has_spans else None
        if context is None and not setting.sample():
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

    def _end(self, trace: Trace) -> None:
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
            elif not setting.left:
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
        """Return the last traces, without their tensors: each request with those that it led to; the last first."""
        return list(self._recent)[::-1]

    # --- the end

    def metrics(self) -> TraceMetrics | None:
        """None if nothing can be traced."""
        return self._counts.metrics() if self._options.has_destination else None

    def close(self) -> None:
        """Write all traces so far. Blocks, at most ten seconds."""
        with self._lock:
            for number in list(self._unanswered):
                self._complete(self._open[number])
            for setting in (self._setting, *self._model_settings.values()):
                self._writer.put(setting)
        self._writer.close()


def _span_id() -> int:
    return random.getrandbits(64) or 1


# --- where traces go, besides OpenTelemetry


class Destination(Protocol):
    def write(self, traces: Sequence[Trace]) -> None:
        """Take the roots of traces that are complete."""
        ...

    def finish(self, setting: Setting) -> None:
        """All traces of a setting that was replaced have been given."""
        ...

    def close(self) -> None:
        """Write the rest; the last call."""
        ...


# Traces that wait to be written. A slow disk must not fill the memory.
_MOST_WAITING = 10_000
# Traces are collected for this long before they are written: each run of the thread takes the interpreter's lock.
_GATHER_SECONDS = 0.1
_TICK_SECONDS = 1.0
_CLOSE_SECONDS = 10.0


class TraceThread:
    """Gives traces to `destination`, and adds them to `recent`. Any thread may call `put`.

    `tick` is called about every second after `start`.
    """

    def __init__(
        self,
        destination: Destination | None,
        recent: deque[tuple[TraceRecord, ...]],
        counts: TraceCounts,
        tick: Callable[[], None],
    ) -> None:
        self._destination = destination
        self._recent = recent
        self._counts = counts
        self._tick = tick
        self._waiting: deque[Trace | Setting] = deque()
        self._wake = threading.Event()
        # Set when waiting traces are to be written without gathering more.
        self._is_urgent = threading.Event()
        self._is_closing = False
        self._starting = threading.Lock()
        self._own_thread: threading.Thread | None = None

    def start(self) -> None:
        with self._starting:
            if self._own_thread is None and not self._is_closing:
                self._own_thread = threading.Thread(target=self._run, name="trident-trace", daemon=True)
                self._own_thread.start()

    def put(self, item: Trace | Setting) -> None:
        """Have a complete trace written, or the rest of a setting that was replaced. Does not block."""
        if len(self._waiting) >= _MOST_WAITING and isinstance(item, Trace):
            self._counts.add_lost(Loss.QUEUE_FULL)
            item.setting.collected += 1
            return
        self._waiting.append(item)
        self._wake.set()

    def hasten(self) -> None:
        """Have queued traces written immediately. Does not block."""
        self._is_urgent.set()
        self._wake.set()

    def close(self) -> None:
        """Write everything and end. Blocks, at most ten seconds."""
        self._is_closing = True
        self.hasten()
        if self._own_thread is not None:
            self._own_thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(_TICK_SECONDS)
            self._is_urgent.wait(_GATHER_SECONDS)
            self._wake.clear()
            self._is_urgent.clear()
            self._write()
            self._tick()
        self._write()
        if self._destination is not None:
            guarded(self._destination.close, "writing traces")

    def _write(self) -> None:
        traces: list[Trace] = []
        while self._waiting:
            item = self._waiting.popleft()
            if isinstance(item, Trace):
                traces.append(item)
                continue
            # The traces of a setting come before its end.
            guarded(partial(self._write_traces, traces), "writing traces")
            if self._destination is not None:
                guarded(partial(self._destination.finish, item), "writing traces")
            traces = []
        guarded(partial(self._write_traces, traces), "writing traces")

    def _write_traces(self, traces: Sequence[Trace]) -> None:
        if self._recent.maxlen:
            self._recent.extend(tuple(map(_record, root.family())) for root in traces)
        if self._destination is not None and traces:
            self._destination.write(traces)


# Characters of traces that wait for a numbered file; with more of them the file is written before it has its number.
_MOST_KEPT = 16 << 20


class TraceFiles:
    """Implements Destination. A file is made when its first trace is written.

    `PATH` gets the traces of settings without a number of traces a file, at once, and is a JSON document when the
    server has ended. `PATH.0`, `PATH.1` and so on are complete when they appear.
    """

    def __init__(self, path: str, counts: TraceCounts) -> None:
        self._path = path
        self._counts = counts
        self._file: BinaryIO | None = None
        # How much of the file is whole traces: what a failed write left behind it is cut off.
        self._size = 0
        self._next = 0
        self._is_failing = False

    def write(self, traces: Sequence[Trace]) -> None:
        written: list[str] = []
        for trace in traces:
            setting = trace.setting
            text = trace_text(trace, setting.levels)
            setting.collected += 1
            if not setting.settings.frequency and setting.settings.count == UNLIMITED:
                if text:
                    written.append(text)
                continue
            if text:
                setting.kept.append(text)
                setting.kept_size += len(text)
            frequency = setting.settings.frequency
            if (
                (frequency and len(setting.kept) >= frequency)
                or (not setting.left and setting.collected >= setting.sampled)
                or setting.kept_size >= _MOST_KEPT
            ):
                self._write_numbered(setting)
        if written:
            self._append(written)

    def finish(self, setting: Setting) -> None:
        if not setting.kept:
            return
        if setting.settings.frequency:
            self._write_numbered(setting)
        else:
            kept, setting.kept = setting.kept, []
            self._append(kept)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return

        def end() -> None:
            with file:
                file.seek(self._size)
                file.truncate()
                _write_all(file, b"]" if self._size else b"[]")

        self._try(end, 0)

    def _append(self, texts: list[str]) -> None:
        def write() -> None:
            if self._file is None:
                self._file = open(self._path, "wb", buffering=0, opener=_opener)  # noqa: SIM115
            content = (("," if self._size else "[") + ",".join(texts)).encode()
            self._file.seek(self._size)
            self._file.truncate()
            _write_all(self._file, content)
            self._size += len(content)

        self._try(write, len(texts))

    def _write_numbered(self, setting: Setting) -> None:
        kept, setting.kept, setting.kept_size = setting.kept, [], 0
        path = f"{self._path}.{self._next}"

        def write() -> None:
            try:
                with open(path, "wb", buffering=0, opener=_opener) as file:
                    _write_all(file, f"[{','.join(kept)}]".encode())
            except OSError:
                if os.path.exists(path):
                    os.unlink(path)
                raise

        if self._try(write, len(kept)):
            self._next += 1

    def _try(self, write: Callable[[], None], count: int) -> bool:
        try:
            write()
        except OSError as error:
            self._counts.add_lost(Loss.NOT_WRITTEN, count)
            if not self._is_failing:
                self._is_failing = True
                _log.error("traces cannot be written to %s: %s; they are lost until they can", self._path, error)
            return False
        if self._is_failing:
            self._is_failing = False
            _log.info("traces are written to %s again", self._path)
        self._counts.add_written(count)
        return True


def _opener(path: str, flags: int) -> int:
    # A named pipe without a reader is an error, not something to wait for.
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _write_all(file: BinaryIO, content: bytes) -> None:
    # A disk that is nearly full takes a part.
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


# Source: docs/spec/trace-and-log.md section 3.


# Written as nothing, as in Triton.
_UNSHOWN = frozenset({"FP16", "BF16"})
_CHARACTERS = frozenset({"INT8", "UINT8"})


def trace_text(root: Trace, levels: tuple[str, ...]) -> str:
    """The objects of a request and of those that it led to, separated by commas; empty if there is nothing to show."""
    texts: list[str] = []
    for trace in root.family():
        number = trace.number
        if TIMESTAMPS in levels:
            header: dict[str, Any] = {
                "id": number,
                "model_name": trace.model_name,
                "model_version": trace.model_version,
            }
            if trace.request_id:
                header["request_id"] = trace.request_id
            if trace.parent is not None:
                header["parent_id"] = trace.parent.number
            texts += [_timestamp(number, event) for event in trace.ahead]
            texts.append(_compact(header))
            texts += [_timestamp(number, event) for event in trace.events]
        if TENSORS in levels:
            for tensor in trace.tensors:
                shown = {
                    "name": tensor.name,
                    "data": _elements(tensor),
                    "shape": ",".join(map(str, tensor.shape)),
                    "dtype": tensor.datatype,
                }
                texts.append(_compact({"id": number, "activity": tensor.activity, "tensor": shown}))
        if TIMESTAMPS in levels:
            texts += [_timestamp(number, event) for event in trace.behind]
    return ",".join(texts)


def _timestamp(number: int, event: TraceEvent) -> str:
    # The names are the server's own. JSON's encoder takes ten times as long.
    name, ns = event
    return f'{{"id":{number},"timestamps":[{{"name":"{name}","ns":{ns}}}]}}'


def _elements(tensor: TracedTensor) -> str:
    """The elements as Triton shows them. Incomplete ones at the end of shortened content are omitted."""
    name, content = tensor.datatype, tensor.content
    datatype = BY_NAME[name]
    if datatype is BYTES:
        return ",".join([f'"{each.decode("utf-8", "replace")}"' for each in _strings(content)])
    if name in _UNSHOWN:
        return ""
    if name in _CHARACTERS:
        return ",".join([chr(byte) for byte in content])
    size = datatype.dtype.itemsize
    values = np.frombuffer(content[: len(content) // size * size], datatype.dtype)
    if name == "BOOL":
        return ",".join(["1" if value else "0" for value in values])
    return ",".join([f"{value:g}" if values.dtype.kind == "f" else str(value) for value in values.tolist()])


def _strings(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 4 <= len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        if at + 4 + size > len(content):
            break
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _record(trace: Trace) -> TraceRecord:
    depth, above = 0, trace.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return TraceRecord(
        number=trace.number,
        parent=trace.parent.number if trace.parent is not None else 0,
        depth=depth,
        model=trace.model_name,
        version=trace.model_version,
        request_id=trace.request_id[:256],
        events=tuple(sorted((*trace.ahead, *trace.events, *trace.behind), key=_when)),
    )
