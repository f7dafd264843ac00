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
from core.remote.frames import FAILED, FINAL, RESPONSE, BadFrame
from core.remote.remote_error import error_of, error_to_plain
from core.remote.tensor_block import LARGE, BlockReader, block_head, write_block
from core.tensors import BY_NAME, BYTES, Array, Buffer, Datatype, Shape, bytes_array, element_count, unpack_bytes

# Where the bytes of a large output were put in the arena, None if there is no room.
Place = Callable[[Buffer], int | None]
Borrow = Callable[[int, int], Array]

_HEADS_REMEMBERED = 1024


class ResponseWriter:
    """Any thread."""

    def __init__(self, place: Place) -> None:
        """`place` puts the bytes of a large output into the arena and says where, or None: they travel in the frame."""
        self._place = place
        self._heads: dict[tuple[object, ...], bytes] = {}

    def write(self, response: InferenceResponse, number: int) -> bytes:
        """The frame. Raises TypeError for what JSON cannot say."""
        if response.error is not None:
            return failed_response(response, response.error, number)
        tensors: list[Buffer] = []
        places: list[int] = []
        outputs: list[tuple[str, str, Shape, int, bool]] = []
        for output in response.outputs:
            content = output.content()
            size = len(content)
            place = self._place(content) if size >= LARGE else None
            if place is None:
                tensors.append(content)
            else:
                places.append(place)
            outputs.append((output.name, output.datatype, output.shape, size, place is not None))
        flags = FINAL if response.final else 0
        if places or response.parameters:
            head = block_head(_meta(response, outputs), b"", places)
        else:
            head = self._known_head(response, outputs)
        return write_block(RESPONSE, number, head, tensors, flags=flags, placed=len(places))

    def _known_head(self, response: InferenceResponse, outputs: list[tuple[str, str, Shape, int, bool]]) -> bytes:
        """Those of a batch are all alike."""
        key = (response.model_name, response.model_version, *outputs)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _HEADS_REMEMBERED:
                self._heads.clear()
            self._heads[key] = head = block_head(_meta(response, outputs))
        return head


def _meta(response: InferenceResponse, outputs: list[tuple[str, str, Shape, int, bool]]) -> bytes:
    return orjson.dumps((response.model_name, response.model_version, response.parameters, outputs))


def failed_response(response: InferenceResponse, error: BaseException, number: int) -> bytes:
    """The frame of `response` with `error` in place of what it has."""
    meta = orjson.dumps((response.model_name, response.model_version, error_to_plain(error)))
    flags = FAILED | (FINAL if response.final else 0)
    return write_block(RESPONSE, number, block_head(meta), (), flags=flags)


class ReceivedOutput(OutputTensor):
    """An output whose array is made when somebody wants it: what is sent on as bytes needs none."""

    __slots__ = ("_content", "_type")

    def __init__(self, name: str, datatype: Datatype, shape: Shape, content: memoryview) -> None:
        self.name = name
        self.datatype = datatype.name
        self.shape = shape
        self._type = datatype
        self._content = content

    @property
    def array(self) -> Array:  # type: ignore[override]
        if self._type is BYTES:
            count = element_count(self.shape)
            return bytes_array(unpack_bytes(self._content, count, name=self.name, model=""), self.shape)
        return np.frombuffer(self._content, self._type.dtype).reshape(self.shape)

    def content(self) -> Buffer:
        return self._content


class _Output(NamedTuple):
    name: str
    datatype: Datatype
    shape: Shape
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
    return _Output(name, BY_NAME[datatype], tuple(shape), size, in_arena)


class ResponseReader:
    """Makes responses of frames, whose memory they go on using. One thread.

    `borrow(place, size)` is memory of the arena, which goes back to the engine when the array is gone.
    """

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow
        self._blocks = BlockReader(_pattern)

    def read(self, content: memoryview, flags: int, placed: int, request_id: str) -> InferenceResponse:
        """Raises BadFrame."""
        (name, version, parameters, described, plain), _, places, at = self._blocks.read(content, placed)
        outputs: list[OutputTensor] = []
        place = iter(places)
        for output, datatype, shape, size, in_arena in described:
            if in_arena:
                memory = self._borrow(next(place), size).data
            else:
                memory = content[at : at + size]
                at += (size + 15) & -16
            outputs.append(ReceivedOutput(output, datatype, shape, memory))
        if at > len(content):
            raise BadFrame("a response that is shorter than its outputs")
        return InferenceResponse(
            name,
            version,
            outputs,
            id=request_id,
            parameters=parameters.copy() if parameters else None,
            error=error_of(plain) if flags & FAILED else None,
            final=bool(flags & FINAL),
        )
