"""Regions of CUDA shared memory, on a driver that has memory of the CPU instead."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.cuda.driver import CudaDriver
from trident.core.errors import InvalidRequest, RegionExists, RegionFailed, RegionNotFound
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor, RegionInput, RegionReference, RegionRequest
from trident.core.shared_memory.attachment import attach
from trident.core.shared_memory.regions import CudaRegion, RegionKind, Regions


@pytest.fixture
def library() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def regions(library: FakeCuda) -> Regions:
    return Regions(map_from=1, open_driver=lambda: CudaDriver(library))


def test_without_a_gpu_the_text_is_tritons() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Regions(open_driver=lambda: None).register_cuda("r", bytes(64), 0, 64)
    assert refusal.value.message == "failed to register CUDA shared memory region: 'r', GPUs not supported"


def test_a_region_is_shown_and_closed(regions: Regions, library: FakeCuda) -> None:
    handle = library.allocate(bytes(100))
    regions.register_cuda("r", handle, 1, 64)
    assert regions.cuda_regions("") == regions.cuda_regions("r") == [CudaRegion(name="r", device_id=1, byte_size=64)]
    assert regions.system_regions("") == []
    text = r"^The region named 'r' is registered as CUDA shared memory, not system shared memory$"
    with pytest.raises(RegionNotFound, match=text):
        regions.system_regions("r")
    with pytest.raises(RegionExists):
        regions.register_cuda("r", handle, 1, 64)
    regions.unregister(RegionKind.SYSTEM, "")
    assert len(library.opened) == 1
    regions.unregister(RegionKind.CUDA, "r")
    gc.collect()
    assert (regions.cuda_regions(""), library.opened) == ([], [])


def test_wrong_handles_devices_and_sizes_are_refused(regions: Regions, library: FakeCuda) -> None:
    handle = library.allocate(bytes(64))
    for wrong, device_id, size, text in [
        (bytes(64), 0, 64, "failed to register shared memory region: invalid args"),
        (handle, 7, 64, "failed to register shared memory region: invalid args"),
        (handle, -1, 64, "failed to register shared memory region: invalid args"),
        (handle, 0, 65, "failed to register shared memory region 'r': invalid args"),
        (handle, 0, 2**64 - 1, "failed to register shared memory region 'r': invalid args"),
    ]:
        with pytest.raises(InvalidRequest) as refusal:
            regions.register_cuda("r", wrong, device_id, size)
        assert refusal.value.message == text
    del refusal
    gc.collect()
    assert (regions.cuda_regions(""), library.opened) == ([], [])


def test_a_request_reads_and_writes_device_memory(regions: Regions, library: FakeCuda) -> None:
    handle = library.allocate(bytes(range(32)))
    regions.register_cuda("r", handle, 0, 32)
    given = RegionInput("IN", "UINT8", (4,), RegionReference("r", 3, 4))
    request = RegionRequest.of(InferenceRequest("m", [given]), {"OUT": RegionReference("r", 20, 8)})
    responses: list[InferenceResponse] = []
    pending = PendingRequest(request, responses.append)
    attach(pending, request, regions)
    given.defer(lambda tensor: np.frombuffer(tensor.data, np.uint8))  # type: ignore[arg-type]
    assert given.array.tolist() == [3, 4, 5, 6]
    values = np.full(8, 9, np.uint8)
    pending.on_response(InferenceResponse("m", 1, [OutputTensor("OUT", "UINT8", (8,), values)], final=False))
    assert library.content(handle)[19:29] == bytes((19, *8 * [9], 28))
    library.failing = "cuMemcpyHtoD_v2"
    pending.on_response(InferenceResponse("m", 1, [OutputTensor("OUT", "UINT8", (8,), values)]))
    error = responses[-1].error
    assert isinstance(error, RegionFailed)
    assert error.message == (
        "CUDA shared memory on device 0 cannot be written: cuMemcpyHtoD_v2 failed with CUDA error 700"
    )


def test_a_failed_read_is_an_error_of_the_request(regions: Regions, library: FakeCuda) -> None:
    regions.register_cuda("r", library.allocate(bytes(8)), 0, 8)
    given = RegionInput("IN", "UINT8", (8,), RegionReference("r", 0, 8))
    request = RegionRequest.of(InferenceRequest("m", [given]), {})
    attach(PendingRequest(request, lambda response: None), request, regions)
    library.failing = "cuMemcpyDtoH_v2"
    with pytest.raises(RegionFailed, match=r"cannot be read: cuMemcpyDtoH_v2 failed with CUDA error 700$"):
        _ = given.data
