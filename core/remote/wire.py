"""The frames between front ends and the engine: their types, and inference requests and responses in them.

The content of a request or a response is a block: a description as JSON, then the tensors' bytes or their offsets.

    meta size   u32    bytes of the JSON
    text size   u32    bytes of the text after it
    offsets     u64    one for each tensor in shared memory, as many as the frame's header says
    meta        JSON   equal bytes for similar requests, so that the decoded document can be remembered
    text        UTF-8  what differs between similar requests or responses
    padding
    tensors            those that are not in shared memory, one after the other
    padding

The meta document of a request is [model, version, outputs, priority, timeout, correlation id, sequence start, sequence
end, parameters, inputs, trace], an input is [name, datatype, shape, bytes, whether it is in shared memory], and the
trace null or the W3C context of the client as [traceparent, tracestate]. If tensors are in the client's shared memory,
the document has two more elements: the regions of the inputs, null for one that is in the request, and the regions of
outputs by their names. A region is [name, offset, bytes]. The text is the id. The moment when the request arrived
stands after the tensors, if the front end has noted it.

The meta document of a response is [model, version, parameters, outputs], where an output is [name, datatype, shape,
bytes, whether it is in shared memory]; that of a failed one is [model, version, error]. The text has numbers with
blanks between them: the times of the response, six numbers, if the engine noted any (-1 stands for no reason), and the
number of its trace, if it is traced.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from trident.core.inference.request import (
    CloseReason,
    InferenceRequest,
    InferenceTimes,
    Inputs,
    InputTensor,
    PackedInputs,
    Parameter,
    RequestTrace,
)
from trident.core.inference.response import (
    InferenceResponse,
    Origin,
    Outputs,
    PackedOutputs,
    ReceivedOutput,
    RegionInput,
    RegionReference,
    RegionRequest,
)
from trident.core.inference.tensors import Buffer, Shape, TensorLayout, layout_of, wire_bytes
from trident.core.interprocess.frames import LARGE, PADDING, frame
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.memo import Memo
from trident.core.remote.calls import error_of, error_to_plain, read_plain, write_exactly, write_plain

HELLO, REQUEST, CANCEL, CALL, RELEASE, ACK, TRACED = range(1, 8)
STATE, RESPONSE, RESULT = range(16, 19)
TO_ENGINE = frozenset((HELLO, REQUEST, CANCEL, CALL, RELEASE, ACK, TRACED))
TO_FRONT_END = frozenset((STATE, RESPONSE, RESULT))

FINAL = 1
FAILED = 2
END = 4
STREAMED = 1
TIMED = 2


# Shared memory by its offset and its size in bytes.
ViewOf = Callable[[int, int], memoryview]

_SIZES = struct.Struct("<II")
_OFFSET = struct.Struct("<Q")
_LONGEST_REMEMBERED = 4096


# The kernel's struct ucred: process, user and group.
_PEER = struct.Struct("3i")


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a Unix socket."""
    process, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return process, user


def block_head(meta: bytes, text: bytes = b"", offsets: Sequence[int] = ()) -> bytes:
    """Return everything before the tensors, padded."""
    parts = [_SIZES.pack(len(meta), len(text)), *map(_OFFSET.pack, offsets), meta, text]
    parts.append(PADDING[sum(map(len, parts)) & 15])
    return b"".join(parts)


class TensorMeta(NamedTuple):
    """A tensor as a meta document describes it. `size` is in bytes."""

    name: str
    datatype: str
    shape: Shape
    size: int
    is_shared: bool


def layout_in_frame(tensors: Iterable[TensorMeta]) -> TensorLayout:
    return layout_of([tensor[:4] for tensor in tensors if not tensor.is_shared])


def contents_of(
    tensors: Sequence[TensorMeta], content: memoryview, at: int, offsets: Sequence[int], view_of: ViewOf
) -> list[memoryview]:
    """Return the bytes of each tensor: from the frame's `content`, beginning at `at`, or `view_of(offset, size)`."""
    following = iter(offsets)
    found: list[memoryview] = []
    for tensor in tensors:
        if tensor.is_shared:
            found.append(view_of(next(following), tensor.size))
        else:
            found.append(content[at : at + tensor.size])
            at += tensor.size
    return found


def _view(memory: SharedMemory, offset: int, size: int) -> memoryview:
    return memory.view(offset, size).data


def read_block(content: memoryview, shared: int) -> tuple[bytes, str, tuple[int, ...], int]:
    """Return the meta document, the text, the offsets, and where the tensors begin.

    The other end is of the same installation, so that what it wrote is not checked.
    """
    meta_size, text_size = _SIZES.unpack_from(content)
    at = 8 + 8 * shared
    end = at + meta_size + text_size
    offsets = tuple([_OFFSET.unpack_from(content, 8 + 8 * i)[0] for i in range(shared)]) if shared else ()
    text = str(content[end - text_size : end], "utf-8", "surrogatepass") if text_size else ""
    return bytes(content[at : at + meta_size]), text, offsets, (end + 15) & -16


# Puts the bytes of a large tensor into shared memory and returns their offset, None to have them in the frame.
Share = Callable[[Buffer], int | None]
# `TensorMeta` as the document has it, where JSON has no named tuples.
_Entry = tuple[str, str, Shape, int, bool]
_MOMENT = struct.Struct("<Q")


# By all that decides it: the meta document of similar requests, and the head of the block without an id.
_request_heads: Final[Memo[tuple[object, ...], tuple[bytes, bytes]]] = Memo(1024)


def write_request(request: InferenceRequest, number: int, share: Share, flags: int = 0) -> bytes:
    """The frame. Raises what `share` raises."""
    inputs = request.inputs
    is_plain = type(request) is InferenceRequest and not (
        request.parameters or request.correlation_id or request.sequence_start or request.sequence_end or request.trace
    )
    if type(inputs) is not PackedInputs or inputs.layout.size >= LARGE or not is_plain:
        tensors: list[Buffer] = []
        offsets: list[int] = []
        entries: list[_Entry] = []
        for tensor in request.inputs:
            if type(tensor) is RegionInput:
                entries.append((tensor.name, tensor.datatype, tensor.shape, 0, False))
                continue
            content = tensor.data
            if type(content) is not memoryview:
                content = memoryview(wire_bytes(np.ascontiguousarray(content)))
            is_shared = _put(content, share, tensors, offsets)
            entries.append((tensor.name, tensor.datatype, tensor.shape, content.nbytes, is_shared))
        if request.arrived_ns:
            tensors.append(_MOMENT.pack(request.arrived_ns))
            flags |= TIMED
        head = block_head(_meta(request, entries), _encoded(request.id), offsets)
        return frame(REQUEST, number, (head, *tensors), flags=flags, shared=len(offsets))
    layout = inputs.layout
    key = (layout, request.model_name, request.model_version, request.outputs, request.priority, request.timeout_us)
    known = _request_heads.get(key)
    if known is None:
        meta = _meta(request, _packed_entries(layout))
        _request_heads[key] = known = (meta, block_head(meta))
    meta, head = known
    if request.id:
        head = block_head(meta, _encoded(request.id))
    if not request.arrived_ns:
        return frame(REQUEST, number, (head, inputs.content), flags=flags)
    moment = _MOMENT.pack(request.arrived_ns)
    return frame(REQUEST, number, (head, inputs.content, moment), flags=flags | TIMED)


def _packed_entries(layout: TensorLayout) -> list[_Entry]:
    return [(name, datatype, shape, end - start, False) for name, datatype, shape, start, end in layout.entries]


def _put(content: Buffer, share: Share, tensors: list[Buffer], offsets: list[int]) -> bool:
    """Put a tensor into shared memory, or into the frame. Returns True if it is in shared memory."""
    offset = share(content) if len(content) >= LARGE else None
    if offset is None:
        tensors.append(content)
        return False
    offsets.append(offset)
    return True


def _encoded(request_id: str) -> bytes:
    return request_id.encode("utf-8", "surrogatepass")


def _writer_for(parameters: Mapping[str, Parameter] | None) -> Callable[[Any], bytes]:
    """Return the writer for a document with these parameters: only they may have numbers that are not finite."""
    return write_exactly if parameters and float in map(type, parameters.values()) else write_plain


def _meta(request: InferenceRequest, inputs: list[_Entry]) -> bytes:
    regions: tuple[Any, ...] = ()
    if isinstance(request, RegionRequest):
        of_inputs = [tuple(each.reference) if isinstance(each, RegionInput) else None for each in request.inputs]
        regions = (of_inputs, {name: tuple(region) for name, region in request.output_regions.items()})
    return _writer_for(request.parameters)(
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
            *regions,
        )
    )


class _RegionMeta(NamedTuple):
    inputs: tuple[RegionReference | None, ...]
    outputs: dict[str, RegionReference]


class _RequestMeta(NamedTuple):
    """The decoded meta document of similar requests."""

    model_name: str
    model_version: int
    outputs: tuple[str, ...]
    priority: int
    timeout_us: int
    correlation_id: int | str
    sequence_start: bool
    sequence_end: bool
    parameters: dict[str, Parameter] | None
    inputs: tuple[TensorMeta, ...]
    layout: TensorLayout  # of the inputs that are in the frame
    trace: RequestTrace | None
    regions: _RegionMeta | None  # of tensors in the client's shared memory


def _request_meta(meta: Any) -> _RequestMeta:
    name, version, outputs, priority, timeout, correlation_id, start, end, parameters, listed, context, *regions = meta
    inputs = tuple(map(_tensor, listed))
    placed: _RegionMeta | None = None
    if regions:
        of_inputs = tuple(None if region is None else RegionReference(*region) for region in regions[0])
        placed = _RegionMeta(of_inputs, {name: RegionReference(*region) for name, region in regions[1].items()})
    return _RequestMeta(
        name,
        version,
        tuple(outputs),
        priority,
        timeout,
        correlation_id,
        start,
        end,
        parameters,
        inputs,
        layout_in_frame(inputs),
        None if context is None else RequestTrace(0, False, *context),
        placed,
    )


def _tensor(entry: Any) -> TensorMeta:
    name, datatype, shape, size, is_shared = entry
    return TensorMeta(name, datatype, tuple(shape), size, is_shared)


_request_metas: Final[Memo[bytes, _RequestMeta]] = Memo(1024)


def read_request(content: memoryview, shared: int, flags: int, memory: SharedMemory) -> InferenceRequest:
    """The request of a frame. Its inputs are views of the frame or of `memory`."""
    text, request_id, offsets, at = read_block(content, shared)
    meta = _request_metas.get(text)
    if meta is None:
        meta = _request_meta(read_plain(text))
        if len(text) <= _LONGEST_REMEMBERED:
            _request_metas[text] = meta
    end = at + meta.layout.size
    inputs: Inputs
    if len(meta.layout.entries) == len(meta.inputs) and not shared:
        inputs = PackedInputs(meta.layout, content[at:end])
    else:
        contents = contents_of(meta.inputs, content, at, offsets, partial(_view, memory))
        inputs = [InputTensor(*i[:3], data) for i, data in zip(meta.inputs, contents, strict=True)]
    request = InferenceRequest(
        meta.model_name,
        inputs,
        model_version=meta.model_version,
        id=request_id,
        outputs=meta.outputs,
        parameters=None if meta.parameters is None else meta.parameters.copy(),
        priority=meta.priority,
        timeout_us=meta.timeout_us,
        correlation_id=meta.correlation_id,
        sequence_start=meta.sequence_start,
        sequence_end=meta.sequence_end,
    )
    if flags & TIMED:
        (request.arrived_ns,) = _MOMENT.unpack_from(content, end)
    request.trace = meta.trace
    if meta.regions is None:
        return request
    request.inputs = [
        tensor if region is None else RegionInput(tensor.name, tensor.datatype, tensor.shape, region)
        for tensor, region in zip(request.inputs, meta.regions.inputs, strict=True)
    ]
    return RegionRequest.of(request, meta.regions.outputs)


# A traced response has the number of its trace alone, or after its six times.
_TRACED = (1, 7)


# The meta document of the responses of a batch, and the head of the block without times.
_response_heads: Final[Memo[tuple[object, ...], tuple[bytes, bytes]]] = Memo(1024)


def write_response(response: InferenceResponse, number: int, memory: SharedMemory) -> bytes:
    """The frame. Large outputs are copied into `memory`, or go through the socket if that is full.

    Raises what the outputs raise, and TypeError for a value that JSON cannot hold; then nothing is left in `memory`.
    """
    if response.error is not None:
        return failed_response(response, response.error, number, response.origin)
    flags = (FINAL if response.final else 0) | (END if response.is_end else 0)
    packed = response.outputs
    if type(packed) is PackedOutputs and packed.layout.size < LARGE and not response.parameters:
        key = (packed.layout, response.model_name, response.model_version)
        known = _response_heads.get(key)
        if known is None:
            meta = _response_meta(response, _packed_entries(packed.layout))
            _response_heads[key] = known = (meta, block_head(meta))
        meta, head = known
        if response.times is not None or response.trace:
            head = block_head(meta, _notes(response))
        return frame(RESPONSE, number, (head, packed.content), flags=flags)
    tensors: list[Buffer] = []
    offsets: list[int] = []
    outputs: list[_Entry] = []
    try:
        for output in response.outputs:
            content = output.content()
            is_shared = _put(content, memory.share, tensors, offsets)
            outputs.append((output.name, output.datatype, output.shape, len(content), is_shared))
        head = block_head(_response_meta(response, outputs), _notes(response), offsets)
    except Exception:
        for offset in offsets:
            memory.unshare(offset)
        raise
    return frame(RESPONSE, number, (head, *tensors), flags=flags, shared=len(offsets))


def _notes(response: InferenceResponse) -> bytes:
    times = response.times
    numbers: tuple[int, ...] = ()
    if times is not None:
        numbers = (*times.numbers, -1 if times.close_reason is None else times.close_reason)
    if response.trace:
        numbers = (*numbers, response.trace)
    return b" ".join([b"%d" % number for number in numbers])


def _response_meta(response: InferenceResponse, outputs: list[_Entry]) -> bytes:
    write = _writer_for(response.parameters)
    return write((response.model_name, response.model_version, response.parameters, outputs))


def failed_response(
    response: InferenceResponse, error: BaseException, number: int, origin: Origin = Origin.FAILED
) -> bytes:
    """Return the frame with `error` instead of the outputs of `response`."""
    meta = write_plain((response.model_name, response.model_version, (origin.value, error_to_plain(error))))
    flags = FAILED | (FINAL if response.final else 0)
    return frame(RESPONSE, number, (block_head(meta, _notes(response)),), flags=flags)


class _ResponseMeta(NamedTuple):
    """The decoded meta document of similar responses."""

    model_name: str
    model_version: int
    parameters: dict[str, Parameter] | None
    outputs: tuple[TensorMeta, ...]
    failure: Any
    layout: TensorLayout  # of the outputs that are in the frame


def _read_response_meta(meta: Any) -> _ResponseMeta:
    if len(meta) == 3:
        return _ResponseMeta(meta[0], meta[1], None, (), meta[2], layout_in_frame(()))
    name, version, parameters, described = meta
    outputs = tuple(map(_tensor, described))
    return _ResponseMeta(name, version, parameters, outputs, None, layout_in_frame(outputs))


_response_metas: Final[Memo[bytes, _ResponseMeta]] = Memo(1024)


def read_response(
    content: memoryview, flags: int, shared: int, request_id: str, memory: SharedMemory
) -> InferenceResponse:
    """The response of a frame. Its outputs are views of the frame or of `memory`, which are released when unused."""
    text, times, offsets, at = read_block(content, shared)
    meta = _response_metas.get(text)
    if meta is None:
        meta = _read_response_meta(read_plain(text))
        if len(text) <= _LONGEST_REMEMBERED:
            _response_metas[text] = meta
    end = at + meta.layout.size
    outputs: Outputs
    if len(meta.layout.entries) == len(meta.outputs) and not shared:
        outputs = PackedOutputs(meta.layout, content[at:end])
    else:
        contents = contents_of(meta.outputs, content, at, offsets, memory.received)
        outputs = [ReceivedOutput(*o[:3], data) for o, data in zip(meta.outputs, contents, strict=True)]
    response = InferenceResponse(
        meta.model_name,
        meta.model_version,
        outputs,
        id=request_id,
        parameters=meta.parameters.copy() if meta.parameters else None,
        final=bool(flags & FINAL),
        is_end=bool(flags & END),
    )
    if flags & FAILED:
        origin, error = meta.failure
        response.origin, response.error = Origin(origin), error_of(error)
    if times:
        # As `_notes` wrote them.
        numbers = [int(word) for word in times.split()]
        if len(numbers) in _TRACED:
            response.trace = numbers.pop()
        if numbers:
            *durations, reason = numbers
            response.times = InferenceTimes.of(durations, None if reason == -1 else CloseReason(reason))
    return response
