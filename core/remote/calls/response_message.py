"""An inference response as a frame.

The meta document is [model, version, parameters, outputs], where an output is [name, datatype, shape, bytes, whether it
is in shared memory]. The document of a failed response is [model, version, error]. The text after the document has
numbers with blanks between them: the times of the response, six numbers, if the engine noted any (-1 stands for no
reason), and the number of its trace, if it is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from core.inference.close_reason import CloseReason
from core.inference.layout import TensorLayout
from core.inference.request import Parameter
from core.inference.response import InferenceResponse, Outputs, PackedOutputs, ReceivedOutput
from core.inference.tensors import BY_NAME, Array, Buffer, Shape
from core.inference.times import InferenceTimes
from core.interprocess.frames import BadFrame
from core.memo import Memo
from core.remote.calls.remote_error import error_of, error_to_plain
from core.remote.transport.frame_kinds import FAILED, FINAL, RESPONSE
from core.remote.transport.tensor_block import (
    LARGE,
    BlockReader,
    Described,
    block_head,
    contents_of,
    layout_in_frame,
    write_block,
)

# Puts the bytes of a large output into shared memory and returns their offset; None if they go into the frame.
Share = Callable[[Buffer], int | None]
# Shared memory by its offset and its size in bytes; the engine gets it back when the array is gone.
Borrow = Callable[[int, int], Array]
# How many numbers a response has that is traced: that of its trace alone, or after its times.
_TRACED = (1, 7)


class ResponseWriter:
    """Makes frames of responses. Any thread."""

    def __init__(self, share: Share) -> None:
        self._share = share
        # The meta document that the responses of a batch share, and the head of the block for those without times.
        self._known: Memo[tuple[object, ...], tuple[bytes, bytes]] = Memo(1024)

    def write(self, response: InferenceResponse, number: int) -> bytes:
        """The frame. Raises TypeError for a value that JSON cannot hold."""
        if response.error is not None:
            return failed_response(response, response.error, number)
        flags = FINAL if response.final else 0
        packed = response.outputs
        if type(packed) is PackedOutputs and packed.layout.size < LARGE and not response.parameters:
            return write_block(
                RESPONSE, number, self._packed_head(response, packed.layout), (packed.content,), flags=flags
            )
        tensors: list[Buffer] = []
        offsets: list[int] = []
        outputs: list[tuple[str, str, Shape, int, bool]] = []
        for output in response.outputs:
            content = output.content()
            size = len(content)
            offset = self._share(content) if size >= LARGE else None
            if offset is None:
                tensors.append(content)
            else:
                offsets.append(offset)
            outputs.append((output.name, output.datatype, output.shape, size, offset is not None))
        head = block_head(_meta(response, outputs), _notes(response), offsets)
        return write_block(RESPONSE, number, head, tensors, flags=flags, shared=len(offsets))

    def _packed_head(self, response: InferenceResponse, layout: TensorLayout) -> bytes:
        key = (layout, response.model_name, response.model_version)
        known = self._known.get(key)
        if known is None:
            outputs = [
                (name, datatype, shape, end - start, False) for name, datatype, shape, start, end in layout.entries
            ]
            meta = _meta(response, outputs)
            self._known[key] = known = (meta, block_head(meta))
        meta, head = known
        return head if response.times is None and not response.trace else block_head(meta, _notes(response))


def _notes(response: InferenceResponse) -> bytes:
    times = response.times
    numbers: tuple[int, ...] = ()
    if times is not None:
        numbers = (*times.numbers, -1 if times.close_reason is None else times.close_reason)
    if response.trace:
        numbers = (*numbers, response.trace)
    return b" ".join([b"%d" % number for number in numbers])


def _note(response: InferenceResponse, text: str) -> None:
    """Give `response` what `_notes` made of it. Raises BadFrame."""
    try:
        numbers = [int(word) for word in text.split()]
        if len(numbers) in _TRACED:
            response.trace = numbers.pop()
        if numbers:
            *durations, reason = numbers
            response.times = InferenceTimes.of(durations, None if reason == -1 else CloseReason(reason))
    except (ValueError, TypeError):
        raise BadFrame("a response whose times cannot be read") from None


def _meta(response: InferenceResponse, outputs: list[tuple[str, str, Shape, int, bool]]) -> bytes:
    return orjson.dumps((response.model_name, response.model_version, response.parameters, outputs))


def failed_response(response: InferenceResponse, error: BaseException, number: int) -> bytes:
    """The frame that carries `error` instead of the outputs of `response`."""
    meta = orjson.dumps((response.model_name, response.model_version, error_to_plain(error)))
    flags = FAILED | (FINAL if response.final else 0)
    return write_block(RESPONSE, number, block_head(meta, _notes(response)), (), flags=flags)


class _Pattern(NamedTuple):
    """The decoded meta document, which similar responses have in common."""

    model_name: str
    model_version: int
    parameters: dict[str, Parameter] | None
    outputs: tuple[Described, ...]
    error: Any
    layout: TensorLayout  # of the outputs that are in the frame


def _pattern(meta: Any) -> _Pattern:
    if len(meta) == 3:
        return _Pattern(meta[0], meta[1], None, (), meta[2], layout_in_frame(()))
    name, version, parameters, described = meta
    outputs = tuple(_output(*entry) for entry in described)
    return _Pattern(name, version, parameters, outputs, None, layout_in_frame(outputs))


def _output(name: Any, datatype: Any, shape: Any, size: Any, is_shared: Any) -> Described:
    return Described(name, BY_NAME[datatype].name, tuple(shape), size, is_shared)


class ResponseReader:
    """Makes responses of frames, on one thread. Their outputs are views of the frame or of shared memory."""

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow
        self._blocks = BlockReader(_pattern)

    def read(self, content: memoryview, flags: int, shared: int, request_id: str) -> InferenceResponse:
        """Raises BadFrame."""
        pattern, times, offsets, at = self._blocks.read(content, shared)
        end = at + pattern.layout.size
        if end > len(content):
            raise BadFrame("a response that is shorter than its outputs")
        outputs: Outputs
        if len(pattern.layout.entries) == len(pattern.outputs) and not shared:
            outputs = PackedOutputs(pattern.layout, content[at:end])
        else:
            contents = contents_of(pattern.outputs, content, at, offsets, self._view_of)
            outputs = [ReceivedOutput(*o[:3], data) for o, data in zip(pattern.outputs, contents, strict=True)]
        response = InferenceResponse(
            pattern.model_name,
            pattern.model_version,
            outputs,
            id=request_id,
            parameters=pattern.parameters.copy() if pattern.parameters else None,
            error=error_of(pattern.error) if flags & FAILED else None,
            final=bool(flags & FINAL),
        )
        if times:
            _note(response, times)
        return response

    def _view_of(self, offset: int, size: int) -> memoryview:
        return self._borrow(offset, size).data
