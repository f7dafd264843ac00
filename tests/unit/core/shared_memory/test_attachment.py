"""A request that uses regions, from its submission to its final response."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from tests.unit.packed_tensors import spec
from tests.unit.shared_memory_object import path_of, shared_memory_object
from trident.core.config.request_check import RequestValidator
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor, RegionInput, RegionReference, RegionRequest
from trident.core.inference.tensors import Array
from trident.core.shared_memory import RegionKind, Regions, attach

SIZE = 64


@pytest.fixture
def key() -> Iterator[str]:
    with shared_memory_object(SIZE, bytes(range(SIZE))) as found:
        yield found


@pytest.fixture
def regions(key: str) -> Regions:
    regions = Regions()
    regions.register_system("r", key, 0, SIZE)
    return regions


def attached(regions: Regions, request: RegionRequest) -> tuple[PendingRequest, list[InferenceResponse]]:
    responses: list[InferenceResponse] = []
    pending = PendingRequest(request, responses.append)
    attach(pending, request, regions)
    return pending, responses


def asking(size: int = 8, offset: int = 0) -> RegionRequest:
    """For the output OUT in the region."""
    return RegionRequest.of(InferenceRequest("m", [], id="7"), {"OUT": RegionReference("r", offset, size)})


def output(array: Array, name: str = "OUT") -> OutputTensor:
    return OutputTensor(name, "BYTES" if array.dtype == object else "UINT8", array.shape, array)


def is_used(regions: Regions) -> bool:
    """Ends the region."""
    regions.unregister(RegionKind.SYSTEM, "r")
    return bool(regions.system_regions(""))


@pytest.mark.parametrize(("map_from", "seen"), [(0, b"defg"), (4, b"DEFG"), (5, b"defg")])
def test_large_tensors_are_used_in_place(key: str, map_from: int, seen: bytes) -> None:
    regions = Regions(map_from)
    regions.register_system("r", key, 0, SIZE)
    given = RegionInput("IN", "UINT8", (4,), RegionReference("r", 3, 4))
    request = RegionRequest.of(InferenceRequest("m", [given]), {"OUT": RegionReference("r", 20, 8)})
    pending, responses = attached(regions, request)
    given.defer(lambda tensor: np.frombuffer(tensor.data, np.uint8))  # type: ignore[arg-type]
    path_of(key).write_bytes(b"abcdefgh" + bytes(56))
    array = given.array
    path_of(key).write_bytes(b"ABCDEFGH" + bytes(56))
    assert array.tobytes() == given.data == seen
    assert array.flags.writeable is (seen == b"defg")
    pending.on_response(InferenceResponse("m", 1, [output(np.full(4, 9, np.uint8))]))
    assert responses[0].error is None
    assert path_of(key).read_bytes()[19:25] == bytes((0, 9, 9, 9, 9, 0))


@pytest.mark.parametrize("was_looked_at", [False, True])
def test_input_is_copied_from_the_region_once(regions: Regions, key: str, was_looked_at: bool) -> None:
    given = RegionInput("IN", "UINT8", (2, 2), RegionReference("r", 3, 4))
    attached(regions, RegionRequest.of(InferenceRequest("m", [given]), {}))
    path_of(key).write_bytes(b"abcdefgh" + bytes(56))
    if was_looked_at:
        assert bytes(given.data) == b"defg"
    path_of(key).write_bytes(b"ABCDEFGH" + bytes(56))
    array = np.zeros((3, 2), np.uint8)
    given.copy_to(array[:2])
    assert array.tobytes() == (b"defg" if was_looked_at else b"DEFG") + bytes(2)
    with pytest.raises(ValueError, match=r"4 bytes do not fill 6|could not broadcast"):
        given.copy_to(array)


def test_an_input_is_freed_without_the_collector(regions: Regions) -> None:
    validator = RequestValidator(spec(A=("UINT8", (64,))))
    request = RegionRequest.of(
        InferenceRequest("m", [RegionInput("A", "UINT8", (1, 64), RegionReference("r", 0, 64))]), {}
    )
    attached(regions, request)
    validator.check(request)
    tensor = request.inputs[0]
    assert tensor.array.tolist() == [list(range(64))]
    gone = weakref.ref(tensor.array)
    gc.disable()
    try:
        del tensor, request
        assert gone() is None
    finally:
        gc.enable()


def test_all_responses_are_written_to_the_same_region(regions: Regions, key: str) -> None:
    pending, responses = attached(regions, asking())
    for number in (1, 2):
        outputs: list[OutputTensor] = [output(np.full(2, number, np.uint8))]
        pending.on_response(InferenceResponse("m", 1, outputs, final=False))
        assert path_of(key).read_bytes()[:3] == bytes((number, number, 2))
    pending.on_response(InferenceResponse("m", 1, [output(np.zeros(9, np.uint8))], final=False))
    assert responses[-1].error is not None
    assert [response.final for response in responses] == [False, False, False]
    assert is_used(regions)
    pending.on_response(InferenceResponse("m", 1, [], final=True))
    assert regions.system_regions("") == []
