"""Inference requests and responses: plain data, with nothing of a front end in them.

A request can be sent over a process boundary as it is: strings, numbers, buffers and arrays. What the engine notes on
it while it runs (times, the number of items) stands below the line in the class.
Source: docs/spec/http.md section 4, docs/spec/schedulers.md sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.errors import ServerError
from core.inference.deferred import Defer
from core.inference.layout import TensorLayout
from core.inference.tensors import (
    BY_NAME,
    BYTES,
    Array,
    Buffer,
    Shape,
    bytes_array,
    element_count,
    unpack_bytes,
    wire_bytes,
)

Parameter = str | int | bool | float


class InputTensor:
    """One input of a request.

    `data` is either a view of the raw little-endian row-major bytes as they came (BYTES: length-prefixed elements), or
    an array of the datatype's numpy type with as many elements as `shape` says. `array` is there after the engine's
    validation: what the backend reads, in the shape that the model sees.
    """

    __slots__ = ("_array", "data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Shape, data: memoryview | Array) -> None:
        self._array: Array | None = None
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data

    @property
    def array(self) -> Array:
        array = self._array
        if array is None:  # validation saw no need to make it
            array = self._array = array_of(self.data, BY_NAME[self.datatype].dtype, self.shape)
        return array

    @array.setter
    def array(self, array: Array) -> None:
        self._array = array


def array_of(data: memoryview | Array, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Raw bytes, or a flat array, as an aligned array of `shape`."""
    if type(data) is np.ndarray:
        return data.reshape(shape)
    array: Array = np.ndarray(shape, dtype, data)
    # A view into a body starts where the JSON ended. Backends may rely on element alignment, so what came unaligned is
    # copied; the worker receives large bodies such that their tensors are aligned.
    return array if array.flags.aligned else array.copy()


class InferenceRequest:
    """A request for one model. Made by a front end; the engine owns it from `submit` to the final response.

    `model_version` -1 means the policy's latest ready version. `outputs` empty means all. `timeout_us` is microseconds,
    0 for none. `cancelled` may be set from any thread; queued requests that carry it leave the queue unrun.

    Inputs that came as one run of bytes are `content`, as `layout` says, and become `inputs` when somebody asks for
    them: most of the way nobody does.
    """

    # Defaults stand on the class: most requests set few of these, and setting twenty costs 2 µs a request.
    parameters: dict[str, Parameter] | None = None
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    cancelled: bool = False
    layout: TensorLayout | None = None
    content: memoryview
    # --- noted by the engine: monotonic ns, the number of items, what must be equal within a batch (None: nothing)
    on_response: Callable[[InferenceResponse], None]
    batch_size: int = 1
    batch_key: tuple[object, ...] | None = None
    start_ns: int = 0
    enqueue_ns: int = 0
    expires_ns: int = 0
    compute_start_ns: int = 0
    # --- where front end and engine are two processes: its number between them, and what sends the responses that were
    # collected, called when all of a batch were given
    number: int = 0
    flush: Callable[[], None] | None = None
    # Takes what the thread that submits the request is to call once it has submitted all; None: it calls nothing.
    defer: Defer | None = None

    def __init__(
        self,
        model_name: str,
        inputs: list[InputTensor] | None = None,
        *,
        model_version: int = -1,
        id: str = "",
        outputs: tuple[str, ...] = (),
        priority: int = 0,
        timeout_us: int = 0,
    ) -> None:
        self.model_name = model_name
        self._inputs = inputs
        self.model_version = model_version
        self.id = id
        self.outputs = outputs
        self.priority = priority
        self.timeout_us = timeout_us

    @property
    def inputs(self) -> list[InputTensor]:
        inputs = self._inputs
        if inputs is None:
            inputs = self._inputs = self._cut()
        return inputs

    @inputs.setter
    def inputs(self, inputs: list[InputTensor]) -> None:
        self._inputs = inputs
        self.layout = None

    def _cut(self) -> list[InputTensor]:
        if self.layout is None:
            return []
        content = self.content
        return [
            InputTensor(name, datatype, shape, content[start:end])
            for name, datatype, shape, start, end in self.layout.entries
        ]

    @property
    def nbytes(self) -> int:
        """The size of the inputs in bytes; strings that came as JSON count as references."""
        return self.layout.size if self.layout is not None else sum(tensor.data.nbytes for tensor in self.inputs)

    @property
    def log_prefix(self) -> str:
        """What Triton puts before the errors of a request, so that a log line finds its caller."""
        return f"[request id: {self.id or '<id_unknown>'}] "


class OutputTensor:
    """One output of a response. `array` is C-contiguous, in the shape that the client sees."""

    __slots__ = ("array", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Shape, array: Array) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.array = array

    def content(self) -> Buffer:
        """The elements as the v2 protocol sends them."""
        return wire_bytes(self.array)


class ReceivedOutput(OutputTensor):
    """An output that is there as bytes, whose array is made when somebody wants it: what is sent on needs none."""

    __slots__ = ("_content",)

    def __init__(self, name: str, datatype: str, shape: Shape, content: memoryview) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._content = content

    @property
    def array(self) -> Array:  # type: ignore[override]
        datatype = BY_NAME[self.datatype]
        if datatype is BYTES:
            count = element_count(self.shape)
            return bytes_array(unpack_bytes(self._content, count, name=self.name, model=""), self.shape)
        return array_of(self._content, datatype.dtype, self.shape)

    def content(self) -> Buffer:
        return self._content


class PackedOutputs:
    """All outputs of one response as one run of bytes, as the v2 protocol sends them."""

    __slots__ = ("content", "layout")

    def __init__(self, layout: TensorLayout, content: memoryview) -> None:
        self.layout = layout
        self.content = content

    def tensors(self) -> list[OutputTensor]:
        content = self.content
        return [
            ReceivedOutput(name, datatype, shape, content[start:end])
            for name, datatype, shape, start, end in self.layout.entries
        ]


# What a backend gives for one request.
Outputs = list[OutputTensor] | PackedOutputs


class InferenceResponse:
    """One response to a request: outputs or an error. `final` is false while more may follow (decoupled models).

    `packed` are the outputs if they are one run of bytes; they become `outputs` when somebody asks for those.
    """

    __slots__ = ("_outputs", "error", "final", "id", "model_name", "model_version", "packed", "parameters")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: Outputs,
        *,
        id: str = "",
        parameters: dict[str, Parameter] | None = None,
        error: ServerError | None = None,
        final: bool = True,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self._outputs = None if isinstance(outputs, PackedOutputs) else outputs
        self.packed = outputs if isinstance(outputs, PackedOutputs) else None
        self.id = id
        self.parameters = parameters
        self.error = error
        self.final = final

    @property
    def outputs(self) -> list[OutputTensor]:
        outputs = self._outputs
        if outputs is None:
            outputs = self._outputs = self.packed.tensors() if self.packed is not None else []
        return outputs


OnResponse = Callable[[InferenceResponse], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadPhase:
    """How far the downloads of models are that go on now. `seconds` since the first of them began."""

    bytes_done: int
    bytes_total: int
    objects_done: int
    objects_total: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPhase:
    """How far the server is, for readiness bodies and the log: `loading`, model `simple`, 3 of 7."""

    name: str
    model: str = ""
    done: int = 0
    total: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    download: DownloadPhase | None = None
