"""An inference response as a frame.

The meta document is [model, version, parameters, outputs], an output [name, datatype, shape, bytes, whether it lies in
the arena]; of a failed one [model, version, error].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import orjson

from core.inference import InferenceResponse, OutputTensor, Parameter
from core.remote.frames import ALIGNMENT, FAILED, FINAL, RESPONSE, BadFrame, Frame
from core.remote.remote_error import error_of, error_to_plain
from core.remote.tensor_block import BlockReader, Tensor, write_block
from core.tensors import (
    BY_NAME,
    BYTES,
    Array,
    Buffer,
    Datatype,
    Shape,
    bytes_array,
    element_count,
    pack_bytes,
    unpack_bytes,
)

Place = Callable[[Buffer], Tensor]
Borrow = Callable[[int, int], Array]

_SMALL = 4096


def write_response(response: InferenceResponse, number: int, place: Place) -> bytes:
    """The frame. `place` says of an output's bytes how they travel."""
    flags = FINAL if response.final else 0
    if response.error is not None:
        meta = orjson.dumps((response.model_name, response.model_version, error_to_plain(response.error)))
        return write_block(RESPONSE, number, meta, b"", (), flags=flags | FAILED)
    tensors: list[Tensor] = []
    outputs: list[tuple[str, str, Shape, int, bool]] = []
    for output in response.outputs:
        placed = place(_content(output))
        tensors.append(placed)
        outputs.append((output.name, output.datatype, output.shape, len(placed.content), placed.place >= 0))
    meta = orjson.dumps((response.model_name, response.model_version, response.parameters, outputs))
    return write_block(RESPONSE, number, meta, b"", tensors, flags=flags)


def _content(output: OutputTensor) -> Buffer:
    array = output.array
    if array.dtype == object:
        return pack_bytes(array.reshape(-1).tolist())
    # A view costs more than the bytes of a small tensor.
    return array.tobytes() if array.nbytes <= _SMALL else array.reshape(-1).view(np.uint8).data


class _Output(NamedTuple):
    name: str
    datatype: Datatype
    shape: Shape
    elements: int
    size: int
    in_arena: bool


class _Pattern(NamedTuple):
    model_name: str
    model_version: int
    parameters: dict[str, Parameter] | None
    outputs: tuple[_Output, ...]
    error: Any


def _pattern(meta: Any) -> _Pattern:
    if len(meta) == 3:
        return _Pattern(meta[0], meta[1], None, (), meta[2])
    name, version, parameters, outputs = meta
    return _Pattern(name, version, parameters, tuple(_output(*entry) for entry in outputs), None)


def _output(name: Any, datatype: Any, shape: Any, size: Any, in_arena: Any) -> _Output:
    dims = tuple(shape)
    return _Output(name, BY_NAME[datatype], dims, element_count(dims), size, in_arena)


class ResponseReader:
    """Makes responses of frames, whose memory they go on using. One thread.

    `borrow(place, size)` is memory of the arena, which goes back to the engine when the array is gone.
    """

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow
        self._blocks = BlockReader(_pattern)

    def read(self, frame: Frame, request_id: str) -> InferenceResponse:
        """Raises BadFrame."""
        pattern, _, places, content, at = self._blocks.read(frame)
        outputs: list[OutputTensor] = []
        place = iter(places)
        for name, datatype, shape, elements, size, in_arena in pattern.outputs:
            if in_arena:
                memory: Any = self._borrow(next(place), size)
            else:
                memory = content[at : at + size]
                if len(memory) != size:
                    raise BadFrame("a response that is shorter than its outputs")
                at += size + (-size % ALIGNMENT)
            if datatype is BYTES:
                texts = unpack_bytes(memoryview(memory), elements, name=name, model=pattern.model_name)
                array = bytes_array(texts, shape)
            else:
                array = np.frombuffer(memory, datatype.dtype, elements).reshape(shape)
            outputs.append(OutputTensor(name, datatype.name, shape, array))
        parameters = pattern.parameters.copy() if pattern.parameters else None
        error = error_of(pattern.error) if frame.flags & FAILED else None
        return InferenceResponse(
            pattern.model_name,
            pattern.model_version,
            outputs,
            id=request_id,
            parameters=parameters,
            error=error,
            final=bool(frame.flags & FINAL),
        )
