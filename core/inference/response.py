"""The inference response: plain data, with outputs or an error.

Source: docs/spec/http.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from trident.core.errors import ServerError
from trident.core.inference.request import InferenceRequest, InferenceTimes, InputTensor, Parameter
from trident.core.inference.tensors import (
    BY_NAME,
    BYTES,
    Array,
    Buffer,
    PackedTensors,
    Shape,
    array_of,
    bytes_array,
    element_count,
    unpack_bytes,
    wire_bytes,
)

# The parameters of an ensemble's response outside of sequences, recognised by identity: their JSON is written once.
NO_SEQUENCE: Final[dict[str, Parameter]] = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
# Placeholder for an output that makes its array later, or never.
NO_ARRAY: Final[Array] = np.empty(0, np.uint8)


class OutputTensor:
    """One output of a response. `array` is C-contiguous, in the shape that the client sees."""

    __slots__ = ("_array", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Shape, array: Array) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._array = array

    @property
    def array(self) -> Array:
        return self._array

    @property
    def nbytes(self) -> int:
        """The size in bytes; strings that are not in wire form count as references."""
        return self._array.nbytes

    def content(self) -> Buffer:
        """The elements as the v2 protocol sends them."""
        return wire_bytes(self._array)


class ReceivedOutput(OutputTensor):
    """An output that arrived as bytes. Its array is made on each use: one that is only forwarded needs none."""

    __slots__ = ("_content",)

    def __init__(self, name: str, datatype: str, shape: Shape, content: memoryview) -> None:
        super().__init__(name, datatype, shape, NO_ARRAY)
        self._content = content

    @property
    def array(self) -> Array:
        datatype = BY_NAME[self.datatype]
        if datatype is BYTES:
            count = element_count(self.shape)
            return bytes_array(unpack_bytes(self._content, count, name=self.name, model=""), self.shape)
        return array_of(self._content, datatype.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        return len(self._content)

    def content(self) -> memoryview:
        return self._content


class PackedOutputs(PackedTensors[OutputTensor]):
    """All outputs of one response as one run of bytes, as the v2 protocol sends them."""

    __slots__ = ()

    def _cut(self) -> list[OutputTensor]:
        content = self.content
        return [
            ReceivedOutput(name, datatype, shape, content[start:end])
            for name, datatype, shape, start, end in self.layout.entries
        ]


# The outputs that a backend returns for one request. A list of ReceivedOutput is a list of outputs, too.
Outputs = list[OutputTensor] | PackedOutputs


class Origin(Enum):
    """The origin of a response's error. Class and code do not reveal it: a model may give its error any code. The value
    crosses process boundaries."""

    REFUSED = "refused"
    """The request was not accepted."""

    REJECTED = "rejected"
    """It was accepted and not executed: it waited for too long, or the server stopped."""

    CANCELLED = "cancelled"
    """Its caller cancelled it, disconnected, or stopped waiting."""

    FAILED = "failed"
    """Its execution failed."""


class InferenceResponse:
    """One response to a request: outputs or an error. `final` is false while more may follow (decoupled models).

    `origin` is that of the error; it means nothing without one. `is_end` if it only marks the end of the responses: it
    is final and has no outputs, error or parameters.
    `times` is None unless the engine was asked to note them; a response with an error has none. `trace` is the number
    of the request's trace, 0 unless it is traced.
    """

    __slots__ = (
        "error",
        "final",
        "id",
        "is_end",
        "model_name",
        "model_version",
        "origin",
        "outputs",
        "parameters",
        "times",
        "trace",
    )

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: Outputs,
        *,
        id: str = "",
        parameters: dict[str, Parameter] | None = None,
        error: ServerError | None = None,
        origin: Origin = Origin.FAILED,
        final: bool = True,
        is_end: bool = False,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = outputs
        self.id = id
        self.parameters = parameters
        self.error = error
        self.origin = origin
        self.final = final
        self.is_end = is_end
        self.times: InferenceTimes | None = None
        self.trace = 0

    @property
    def nbytes(self) -> int:
        outputs = self.outputs
        return outputs.layout.size if type(outputs) is PackedOutputs else sum([output.nbytes for output in outputs])

    @classmethod
    def failed(
        cls, about: InferenceRequest | InferenceResponse, error: ServerError, origin: Origin = Origin.FAILED
    ) -> InferenceResponse:
        """The final response with `error`, to the request `about` or in place of the response `about`."""
        return cls(about.model_name, about.model_version, [], id=about.id, error=error, origin=origin)


OnResponse = Callable[[InferenceResponse], None]
# Returns the complete response to a request; None if the request has to be submitted.
CachedAnswer = Callable[[InferenceRequest], InferenceResponse | None]


# A front end knows only where they are: the regions belong to the engine, which reads and writes them. Source:
# docs/spec/shared-memory.md section 6.


_NOTHING = memoryview(b"")


class RegionReference(NamedTuple):
    """A range of a region: the name of the region, the offset from its beginning and the size, both in bytes."""

    region: str
    offset: int
    byte_size: int


class DevicePlace(NamedTuple):
    """Bytes on a GPU, at an address of this process."""

    device_id: int
    address: int
    byte_size: int


class RegionInput(InputTensor):
    """An input in a region. It is read once, when it is first needed: for most models on the thread that executes.

    The engine sets `source`, which copies the bytes into given memory or its own, before anything looks at `data`,
    `in_place` if a model may read them where they lie, and `on_device` if that is a GPU. `data` and `array` pass on
    their exceptions. `data` is always a copy: the model gets the bytes that were checked, whatever the client does
    meanwhile.
    """

    __slots__ = ("_content", "_make", "in_place", "on_device", "reference", "source")

    def __init__(self, name: str, datatype: str, shape: Shape, reference: RegionReference) -> None:
        super().__init__(name, datatype, shape, _NOTHING)
        self._content: memoryview | None = None
        self._make: Callable[[InputTensor], Array] | None = None
        self.reference = reference
        self.source: Callable[[memoryview | None], memoryview] | None = None
        self.in_place: Callable[[], memoryview] | None = None
        self.on_device: DevicePlace | None = None

    @property
    def nbytes(self) -> int:
        return self.reference.byte_size

    @property
    def data(self) -> memoryview:
        content = self._content
        if content is None:
            assert self.source is not None
            content = self._content = self.source(None)
        return content

    @property
    def array(self) -> Array:
        array = self._array
        if array is None:
            if self._content is None and self.in_place is not None:
                self._content = self.in_place()
            if self._make is None:
                array = array_of(self.data, BY_NAME[self.datatype].dtype, self.shape)
            else:
                array = self._make(self)
            self._array = array
        return array

    @array.setter
    def array(self, array: Array) -> None:
        self._array = array

    def copy_to(self, array: Array) -> None:
        if self.source is None or self._array is not None or self._content is not None or self.in_place is not None:
            super().copy_to(array)
        elif array.nbytes != self.nbytes:
            raise ValueError(f"{self.nbytes} bytes do not fill {array.nbytes}")
        else:
            self.source(array.reshape(-1).view(np.uint8).data)

    def defer(self, make: Callable[[InputTensor], Array]) -> None:
        """Let `make` make the array when it is first needed. It gets this input, to which it must not refer."""
        self._array, self._make = None, make

    def forget_array(self) -> None:
        self._array = self._make = None


class PlacedOutput(OutputTensor):
    """An output that was written into a region: the response only describes it."""

    __slots__ = ()

    def __init__(self, name: str, datatype: str, shape: Shape) -> None:
        super().__init__(name, datatype, shape, NO_ARRAY)

    @property
    def nbytes(self) -> int:
        return 0

    def content(self) -> memoryview:
        return _NOTHING


class RegionRequest(InferenceRequest):
    """A request with inputs in regions (`RegionInput`), or with outputs to be written into regions.

    `output_regions` has the ranges of those outputs. `needs_regions` is true until the engine has found the regions;
    then `outputs_on_device` has those that are on a GPU.
    """

    __slots__ = ("output_regions", "outputs_on_device")

    output_regions: Mapping[str, RegionReference]
    outputs_on_device: Mapping[str, DevicePlace]

    @staticmethod
    def of(request: InferenceRequest, output_regions: Mapping[str, RegionReference]) -> RegionRequest:
        made = RegionRequest(
            request.model_name,
            request.inputs,
            model_version=request.model_version,
            id=request.id,
            outputs=request.outputs,
            parameters=request.parameters,
            priority=request.priority,
            timeout_us=request.timeout_us,
            correlation_id=request.correlation_id,
            sequence_start=request.sequence_start,
            sequence_end=request.sequence_end,
        )
        made.arrived_ns = request.arrived_ns
        made.trace = request.trace
        made.output_regions = output_regions
        made.needs_regions = True
        made.outputs_on_device = {}
        return made
