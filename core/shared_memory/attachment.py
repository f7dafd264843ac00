"""The regions that one request uses, from its submission to its final response.

Source: docs/spec/shared-memory.md sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trident.core.buffer_pool import BufferPool
from trident.core.errors import OutOfMemory, RegionFailed, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.response import (
    InferenceResponse,
    OnResponse,
    OutputTensor,
    PlacedOutput,
    RegionInput,
    RegionRequest,
)
from trident.core.shared_memory.regions import Region, Regions

# The region of an output, where the output begins in the region's memory, and the size that the client has given it.
_Place = tuple[Region, int, int]


class Attachment:
    """Takes the responses in place of the request's caller: writes their outputs into regions, and passes them on.

    `respond` is called on any thread, one at a time.
    """

    __slots__ = ("_on_response", "_places", "_regions", "_used")

    def __init__(
        self, regions: Regions, used: list[Region], places: Mapping[str, _Place], on_response: OnResponse
    ) -> None:
        self._regions = regions
        self._used = used
        self._places = places
        self._on_response = on_response

    def respond(self, response: InferenceResponse) -> None:
        if self._places and response.error is None and response.outputs:
            try:
                response = self._placed(response)
            except ServerError as error:
                is_final = response.final
                response = InferenceResponse.failed(response, error)
                response.final = is_final
        if response.final:
            # Before the caller knows: then it may look at the regions, or register them anew.
            used, self._used = self._used, []
            self._regions.release(used)
        self._on_response(response)

    def _placed(self, response: InferenceResponse) -> InferenceResponse:
        """The response with the outputs that are to be in regions written there. Others may have the same outputs."""
        outputs: list[OutputTensor] = []
        for output in response.outputs:
            place = self._places.get(output.name)
            # The model may have written it there itself.
            if place is None or type(output) is PlacedOutput:
                outputs.append(output)
                continue
            region, start, byte_size = place
            content = output.content()
            if len(content) > byte_size:
                raise RegionFailed(
                    f"shared memory size specified with the request for output '{output.name}' ({byte_size} bytes) "
                    f"should be at least {len(content)} bytes to hold the results"
                )
            if self._regions.maps(region, len(content)):
                region.memory.view(start, len(content))[:] = memoryview(content)
            else:
                region.memory.write(start, content)
            outputs.append(PlacedOutput(output.name, output.datatype, output.shape))
        placed = InferenceResponse(
            response.model_name,
            response.model_version,
            outputs,
            id=response.id,
            parameters=response.parameters,
            final=response.final,
        )
        placed.times = response.times
        return placed


def _read(buffers: BufferPool, region: Region, start: int, size: int, into: memoryview | None) -> memoryview:
    try:
        content = buffers.take(size) if into is None else into
    except MemoryError:
        raise OutOfMemory(f"there is no memory for an input of {size} bytes in shared memory") from None
    region.memory.read(start, content)
    return content


def _view(region: Region, start: int, size: int) -> memoryview:
    return region.memory.view(start, size).toreadonly()


def attach(pending: PendingRequest, request: RegionRequest, regions: Regions) -> None:
    """Find the regions of `request`, which is that of `pending`, and use them until its final response.

    Raises RegionNotFound or InvalidRequest with Triton's texts; then nothing has changed.
    """
    inputs = [tensor for tensor in request.inputs if isinstance(tensor, RegionInput)]
    outputs = request.output_regions
    used = regions.use([*(tensor.reference for tensor in inputs), *outputs.values()])
    for tensor, (region, start) in zip(inputs, used, strict=False):
        size = tensor.reference.byte_size
        tensor.source = partial(_read, regions.buffers, region, start, size)
        tensor.on_device = region.memory.on_device(start, size)
        if regions.maps(region, size):
            tensor.in_place = partial(_view, region, start, size)
    places = {
        name: (region, start, reference.byte_size)
        for (name, reference), (region, start) in zip(outputs.items(), used[len(inputs) :], strict=True)
    }
    on_device = {name: region.memory.on_device(start, size) for name, (region, start, size) in places.items()}
    request.outputs_on_device = {name: place for name, place in on_device.items() if place is not None}
    attachment = Attachment(regions, [region for region, _ in used], places, pending.on_response)
    pending.on_response = attachment.respond
    request.needs_regions = False
