"""An inference request as a frame.

The meta document is [model, version, outputs, priority, timeout, correlation id, sequence start, sequence end,
parameters, inputs, trace], an input is [name, datatype, shape, bytes, whether it is in shared memory], and the trace
null or the W3C context of the client as [traceparent, tracestate]. If tensors are in the client's shared memory, the
document has two more elements: the places of the inputs, null for one that is in the request, and the places of outputs
by their names. A place is [region, offset, bytes]. The moment when the request arrived stands after the tensors, if the
front end has noted it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from core.inference.layout import TensorLayout
from core.inference.region_tensors import RegionInput, RegionReference, RegionRequest
from core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs, Parameter
from core.inference.request_trace import RequestTrace
from core.inference.tensors import Buffer, Shape, wire_bytes
from core.interprocess.frames import BadFrame
from core.memo import Memo
from core.remote.calls.serialization import write_plain
from core.remote.transport.frame_kinds import REQUEST, TIMED
from core.remote.transport.tensor_block import (
    LARGE,
    BlockReader,
    Described,
    ViewOf,
    block_head,
    contents_of,
    layout_in_frame,
    write_block,
)

# Puts the bytes of a large input into shared memory and returns their offset; None if they go into the frame.
Share = Callable[[Buffer], int | None]
# `Described` as the document has it, where JSON has no named tuples.
_Entry = tuple[str, str, Shape, int, bool]
_MOMENT = struct.Struct("<Q")


class RequestWriter:
    """Makes frames of requests. Any thread."""

    def __init__(self) -> None:
        # The meta document that similar requests share, and the head of the block for those without an id.
        self._known: Memo[tuple[object, ...], tuple[bytes, bytes]] = Memo(1024)

    def write(self, request: InferenceRequest, number: int, share: Share, flags: int = 0) -> bytes:
        """The frame. Raises what `share` raises."""
        inputs = request.inputs
        if type(inputs) is not PackedInputs or inputs.layout.size >= LARGE or not _is_plain(request):
            return _write(request, number, share, flags)
        layout = inputs.layout
        key = (
            layout,
            request.model_name,
            request.model_version,
            request.outputs,
            request.priority,
            request.timeout_us,
        )
        known = self._known.get(key)
        if known is None:
            meta = _meta(
                request,
                [(name, datatype, shape, end - start, False) for name, datatype, shape, start, end in layout.entries],
            )
            self._known[key] = known = (meta, block_head(meta))
        meta, head = known
        if request.id:
            head = block_head(meta, _text(request.id))
        if not request.arrived_ns:
            return write_block(REQUEST, number, head, (inputs.content,), flags=flags)
        moment = _MOMENT.pack(request.arrived_ns)
        return write_block(REQUEST, number, head, (inputs.content, moment), flags=flags | TIMED)


def _is_plain(request: InferenceRequest) -> bool:
    """Whether only its id and its tensors differ from other requests of its kind."""
    if type(request) is not InferenceRequest:
        return False
    return not (
        request.parameters or request.correlation_id or request.sequence_start or request.sequence_end or request.trace
    )


def _write(request: InferenceRequest, number: int, share: Share, flags: int) -> bytes:
    tensors: list[Buffer] = []
    offsets: list[int] = []
    inputs: list[_Entry] = []
    for tensor in request.inputs:
        if type(tensor) is RegionInput:
            inputs.append((tensor.name, tensor.datatype, tensor.shape, 0, False))
            continue
        content = tensor.data
        if type(content) is not memoryview:
            content = memoryview(wire_bytes(np.ascontiguousarray(content)))
        size = content.nbytes
        offset = share(content) if size >= LARGE else None
        if offset is None:
            tensors.append(content)
        else:
            offsets.append(offset)
        inputs.append((tensor.name, tensor.datatype, tensor.shape, size, offset is not None))
    if request.arrived_ns:
        tensors.append(_MOMENT.pack(request.arrived_ns))
        flags |= TIMED
    head = block_head(_meta(request, inputs), _text(request.id), offsets)
    return write_block(REQUEST, number, head, tensors, flags=flags, shared=len(offsets))


def _text(request_id: str) -> bytes:
    return request_id.encode("utf-8", "surrogatepass")


def _meta(request: InferenceRequest, inputs: list[_Entry]) -> bytes:
    places: tuple[Any, ...] = ()
    if isinstance(request, RegionRequest):
        of_inputs = [tuple(each.reference) if isinstance(each, RegionInput) else None for each in request.inputs]
        places = (of_inputs, {name: tuple(place) for name, place in request.output_regions.items()})
    return write_plain(
        (
            request.model_name,
            request.model_version,
            request.outputs,
            request.priority,
            request.timeout_us,
            request.correlation_id,
            request.sequence_start,
            request.sequence_end,
            request.parameters,
            inputs,
            None if request.trace is None else (request.trace.traceparent, request.trace.tracestate),
            *places,
        )
    )


class _Places(NamedTuple):
    inputs: tuple[RegionReference | None, ...]
    outputs: dict[str, RegionReference]


class _Pattern(NamedTuple):
    """The decoded meta document, which similar requests have in common."""

    model_name: str
    model_version: int
    outputs: tuple[str, ...]
    priority: int
    timeout_us: int
    correlation_id: int | str
    sequence_start: bool
    sequence_end: bool
    parameters: dict[str, Parameter] | None
    inputs: tuple[Described, ...]
    layout: TensorLayout  # of the inputs that are in the frame
    trace: RequestTrace | None
    places: _Places | None  # of tensors in the client's shared memory


def _pattern(meta: Any) -> _Pattern:
    name, version, outputs, priority, timeout, correlation_id, start, end, parameters, listed, context, *places = meta
    inputs = tuple(_input(*entry) for entry in listed)
    if not (type(name) is str and type(version) is int and type(priority) is int and type(timeout) is int):
        raise ValueError("a field of the request has the wrong type")
    if type(correlation_id) not in (int, str) or not (parameters is None or type(parameters) is dict):
        raise ValueError("a field of the request has the wrong type")
    return _Pattern(
        name,
        version,
        tuple(map(str, outputs)),
        priority,
        timeout,
        correlation_id,
        bool(start),
        bool(end),
        parameters,
        inputs,
        layout_in_frame(inputs),
        None if context is None else RequestTrace(0, False, *map(str, context)),
        _places(*places, count=len(inputs)) if places else None,
    )


def _places(of_inputs: Any, of_outputs: Any, *, count: int) -> _Places:
    inputs = tuple(None if place is None else _place(*place) for place in of_inputs)
    if len(inputs) != count or type(of_outputs) is not dict:
        raise ValueError("there are not as many places of inputs as inputs, or places of outputs without names")
    return _Places(inputs, {str(name): _place(*place) for name, place in of_outputs.items()})


def _place(region: Any, offset: Any, size: Any) -> RegionReference:
    if not (type(region) is str and type(offset) is int and type(size) is int and offset >= 0 and size >= 0):
        raise ValueError("a place in shared memory is not a name and two numbers")
    return RegionReference(region, offset, size)


def _input(name: Any, datatype: Any, shape: Any, size: Any, is_shared: Any) -> Described:
    # An unknown datatype passes: validation refuses it with Triton's text.
    if not (type(name) is str and type(datatype) is str and type(is_shared) is bool):
        raise ValueError("a field of an input has the wrong type")
    if not (type(size) is int and size >= 0):
        raise ValueError("the size of an input is not a number")
    dims = tuple(shape)
    if not all(type(dim) is int for dim in dims):
        raise ValueError("the shape of an input is not a list of numbers")
    return Described(name, datatype, dims, size, is_shared)


class RequestReader:
    """Makes requests of frames, on one thread. Their inputs are views of the frame or of shared memory."""

    def __init__(self, view_of: ViewOf) -> None:
        self._view_of = view_of
        self._blocks = BlockReader(_pattern)

    def read(self, content: memoryview, shared: int, flags: int = 0) -> InferenceRequest:
        """Raises BadFrame."""
        pattern, request_id, offsets, at = self._blocks.read(content, shared)
        end = at + pattern.layout.size
        if end + (_MOMENT.size if flags & TIMED else 0) > len(content):
            raise BadFrame("a request that is shorter than its inputs")
        inputs: Inputs
        if len(pattern.layout.entries) == len(pattern.inputs) and not shared:
            inputs = PackedInputs(pattern.layout, content[at:end])
        else:
            contents = contents_of(pattern.inputs, content, at, offsets, self._view_of)
            inputs = [InputTensor(*i[:3], data) for i, data in zip(pattern.inputs, contents, strict=True)]
        request = InferenceRequest(
            pattern.model_name,
            inputs,
            model_version=pattern.model_version,
            id=request_id,
            outputs=pattern.outputs,
            parameters=None if pattern.parameters is None else pattern.parameters.copy(),
            priority=pattern.priority,
            timeout_us=pattern.timeout_us,
            correlation_id=pattern.correlation_id,
            sequence_start=pattern.sequence_start,
            sequence_end=pattern.sequence_end,
        )
        if flags & TIMED:
            (request.arrived_ns,) = _MOMENT.unpack_from(content, end)
        request.trace = pattern.trace
        return request if pattern.places is None else _in_regions(request, pattern.places)


def _in_regions(request: InferenceRequest, places: _Places) -> RegionRequest:
    request.inputs = [
        tensor if place is None else RegionInput(tensor.name, tensor.datatype, tensor.shape, place)
        for tensor, place in zip(request.inputs, places.inputs, strict=True)
    ]
    return RegionRequest.of(request, places.outputs)
