"""Tensors of a request and of its responses that lie in shared memory of the client.

A front end knows only where they are: the regions belong to the engine, which reads and writes them.
Source: docs/spec/shared-memory.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from core.inference.request import InferenceRequest, InputTensor
from core.inference.response import NO_ARRAY, OutputTensor
from core.inference.tensors import Array, Shape

_NOTHING = memoryview(b"")


class RegionReference(NamedTuple):
    """A place in a region: the name of the region, the offset from its beginning and the size, both in bytes."""

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

    The engine sets `source`, which copies the bytes, before anything looks at `data`, `in_place` if a model may read
    them where they lie, and `on_device` if that is a GPU. What these raise, `data` and `array` raise. `data` is always
    a copy: what was looked at there is what the model gets, whatever the client does meanwhile.
    """

    __slots__ = ("_content", "_make", "in_place", "on_device", "reference", "source")

    def __init__(self, name: str, datatype: str, shape: Shape, reference: RegionReference) -> None:
        super().__init__(name, datatype, shape, _NOTHING)
        self._content: memoryview | None = None
        self._make: Callable[[InputTensor], Array] | None = None
        self.reference = reference
        self.source: Callable[[], memoryview] | None = None
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
            content = self._content = self.source()
        return content

    @property
    def array(self) -> Array:
        array = self._array
        if array is None:
            assert self._make is not None
            if self._content is None and self.in_place is not None:
                self._content = self.in_place()
            array = self._array = self._make(self)
        return array

    @array.setter
    def array(self, array: Array) -> None:
        self._array = array

    def defer(self, make: Callable[[InputTensor], Array]) -> None:
        """Let `make` make the array when it is first needed. It gets this input, to which it must not refer."""
        self._array, self._make = None, make


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
    """A request with inputs in regions (`RegionInput`), or with outputs that shall be written into regions.

    `output_regions` has the places of those outputs. `needs_regions` is true until the engine has found the regions;
    then `outputs_on_device` has those that are on a GPU.
    """

    __slots__ = ("output_regions", "outputs_on_device")

    output_regions: Mapping[str, RegionReference]
    outputs_on_device: Mapping[str, DevicePlace]

    @classmethod
    def of(cls, request: InferenceRequest, output_regions: Mapping[str, RegionReference]) -> RegionRequest:
        """The same request, whose outputs shall lie in these places."""
        made = cls(
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
        made.caller = request.caller
        made.trace = request.trace
        made.output_memory = request.output_memory
        made.output_regions = output_regions
        made.needs_regions = True
        made.outputs_on_device = {}
        return made
