"""The responses to a traced request, on their way to its caller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from core.inference.region_tensors import RegionInput
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse, OnResponse
from core.inference.tensors import Buffer, wire_bytes
from core.inference.times import InferenceTimes
from core.observability.tracing.settings import TENSORS
from core.observability.tracing.trace import Trace, TracedTensor

if TYPE_CHECKING:
    from core.inference.pending_request import PendingRequest
    from core.observability.tracing.tracer import Tracer

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
    """Keep the inputs as they are queued, except those in the client's shared memory, which are read only once."""
    for tensor in request.inputs:
        if isinstance(tensor, RegionInput):
            continue
        content = tensor.data
        if not isinstance(content, memoryview):
            content = memoryview(wire_bytes(content))
        _note(trace, "TENSOR_QUEUE_INPUT", tensor.name, tensor.datatype, tensor.shape, content)


def note_outputs(trace: Trace, response: InferenceResponse) -> None:
    """Keep the outputs as the model made them."""
    for tensor in response.outputs:
        _note(trace, "TENSOR_BACKEND_OUTPUT", tensor.name, tensor.datatype, tensor.shape, tensor.content())


def _note(trace: Trace, activity: str, name: str, datatype: str, shape: tuple[int, ...], content: Buffer) -> None:
    shown = bytes(memoryview(content)[:_MOST_SHOWN])
    trace.tensors.append(TracedTensor(activity, name, datatype, shape, shown))
