"""The regions that clients register, in system memory and on GPUs."""

from __future__ import annotations

import gc
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.core.cuda.fake_cuda import FakeCuda
from tests.unit.shared_memory_object import path_of, shared_memory_object
from trident.core import shared_memory as module
from trident.core.cuda import CudaDriver
from trident.core.errors import InvalidRequest, RegionExists, RegionFailed, RegionNotFound
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor, RegionInput, RegionReference, RegionRequest
from trident.core.shared_memory import DIRECTORY, CudaRegion, RegionKind, Regions, SystemMemory, attach, open_object


def content_of(memory: SystemMemory, offset: int, size: int) -> bytes:
    content = bytearray(size)
    memory.read(offset, memoryview(content))
    return bytes(content)


PAGE = mmap.ALLOCATIONGRANULARITY


@pytest.fixture
def key() -> Iterator[str]:
    with shared_memory_object(2 * PAGE, b"abcdefgh") as found:
        yield found


@pytest.fixture
def regions() -> Regions:
    return Regions()


def names(regions: Regions) -> list[str]:
    return [each.name for each in regions.system_regions("")]


def open_files() -> int:
    gc.collect()  # errors of other tests may still hold some
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("offset", "byte_size"), [(2 * PAGE, 1), (1, PAGE)])
def test_a_refused_region_leaves_no_open_object(regions: Regions, key: str, offset: int, byte_size: int) -> None:
    before = open_files()
    with pytest.raises(InvalidRequest) as refusal:
        regions.register_system("r", key, offset, byte_size)
    assert names(regions) == []
    del refusal
    assert open_files() == before


def test_regions_and_open_objects_are_bounded(regions: Regions, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REGIONS", 3)
    for name in "abc":
        regions.register_system(name, key, 0, PAGE)
    with pytest.raises(InvalidRequest, match=r"^failed to register shared memory region 'd': 3 regions are registered"):
        regions.register_system("d", key, 0, PAGE)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4, 4))
    regions.unregister(RegionKind.SYSTEM, "a")
    regions.register_system("a", key, 0, PAGE)
    regions.unregister(RegionKind.SYSTEM, "a")
    before = open_files()
    with (
        shared_memory_object(8) as other,
        pytest.raises(InvalidRequest, match="'d': 1 objects of shared memory are open, a quarter of") as refusal,
    ):
        regions.register_system("d", other, 0, 8)
    assert "unregister regions" in (refusal.value.hint or "")
    del refusal
    assert open_files() == before


def test_reused_key_opens_the_new_object(regions: Regions, key: str) -> None:
    regions.register_system("old", key, 0, PAGE)
    path_of(key).unlink()
    path_of(key).write_bytes(b"ABCDEFGH" + bytes(PAGE))
    regions.register_system("new", key, 0, PAGE)
    used = regions.use([RegionReference("old", 0, 8), RegionReference("new", 0, 8)])
    assert [bytes(region.memory.view(start, 8)) for region, start in used] == [b"abcdefgh", b"ABCDEFGH"]


def test_shrunken_object_is_an_error_and_is_not_enlarged() -> None:
    with shared_memory_object(100) as key:
        memory = open_object(key)
        os.truncate(path_of(key), 10)
        with pytest.raises(InvalidRequest, match=r"^8 bytes at 4 of .* cannot be read, it has only 10 bytes$"):
            content_of(memory, 4, 8)
        with pytest.raises(InvalidRequest, match=r"^8 bytes at 4 of .* cannot be written, it has only 10 bytes$"):
            memory.write(4, bytes(8))
        with pytest.raises(InvalidRequest, match=r"^8 bytes at 4 of .* cannot be used, it has only 10 bytes$"):
            memory.view(4, 8)
        assert path_of(key).stat().st_size == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "/no such object",
        "/../../etc/passwd",
        "/a/b",
        "/proc/self/mem",
        "..",
        ".",
        "/a\0b",
        "/" + "x" * 256,
        "/" + "ä" * 128,
        "/\udcff\ud800",
    ],
)
def test_invalid_key_of_shared_memory_is_refused(key: str) -> None:
    before = open_files()
    with pytest.raises(RegionFailed) as refusal:
        open_object(key)
    assert refusal.value.message == f"Unable to open shared memory region: '{key}'"
    assert refusal.value.hint
    assert open_files() == before


def test_links_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = open_files()
    for name in ("link", "folder", "pipe"):
        with pytest.raises(RegionFailed, match=r"^Unable to open shared memory region"):
            open_object(name, str(tmp_path))
    assert open_files() == before
    assert open_object("secret", str(tmp_path)).size == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can open what belongs to others")
def test_the_superuser_opens_no_object_of_another_user(tmp_path: Path) -> None:
    with shared_memory_object(8) as key:
        os.chown(path_of(key), 12345, 12345)
        path_of(key).chmod(0o644)
        with pytest.raises(RegionFailed) as refusal:
            open_object(key)
        assert "belongs to user 12345" in (refusal.value.hint or "")
        path_of(key).chmod(0o666)
        assert open_object(key).size == 8


def test_full_shared_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # A file system without room, which every Linux has: each write fails with ENOSPC.
    full = os.open("/dev/full", os.O_RDWR)
    memory = SystemMemory(full, "/full", (0, 0))
    monkeypatch.setattr(SystemMemory, "size", 100)
    with pytest.raises(RegionFailed, match=r"^unable to write 8 bytes at 0 of .*: No space left on device$") as refusal:
        memory.write(0, bytes(8))
    assert DIRECTORY in (refusal.value.hint or "")


@pytest.fixture
def library() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def gpu_regions(library: FakeCuda) -> Regions:
    return Regions(map_from=1, open_driver=lambda: CudaDriver(library))


def test_a_region_is_shown_and_closed(gpu_regions: Regions, library: FakeCuda) -> None:
    handle = library.allocate(bytes(100))
    gpu_regions.register_cuda("r", handle, 1, 64)
    assert (
        gpu_regions.cuda_regions("")
        == gpu_regions.cuda_regions("r")
        == [CudaRegion(name="r", device_id=1, byte_size=64)]
    )
    assert gpu_regions.system_regions("") == []
    text = r"^The region named 'r' is registered as CUDA shared memory, not system shared memory$"
    with pytest.raises(RegionNotFound, match=text):
        gpu_regions.system_regions("r")
    with pytest.raises(RegionExists):
        gpu_regions.register_cuda("r", handle, 1, 64)
    gpu_regions.unregister(RegionKind.SYSTEM, "")
    assert len(library.opened) == 1
    gpu_regions.unregister(RegionKind.CUDA, "r")
    gc.collect()
    assert (gpu_regions.cuda_regions(""), library.opened) == ([], [])


def test_wrong_handles_devices_and_sizes_are_refused(gpu_regions: Regions, library: FakeCuda) -> None:
    handle = library.allocate(bytes(64))
    for wrong, device_id, size, text in [
        (bytes(64), 0, 64, "failed to register shared memory region: invalid args"),
        (handle, 7, 64, "failed to register shared memory region: invalid args"),
        (handle, -1, 64, "failed to register shared memory region: invalid args"),
        (handle, 0, 65, "failed to register shared memory region 'r': invalid args"),
        (handle, 0, 2**64 - 1, "failed to register shared memory region 'r': invalid args"),
    ]:
        with pytest.raises(InvalidRequest) as refusal:
            gpu_regions.register_cuda("r", wrong, device_id, size)
        assert refusal.value.message == text
    del refusal
    gc.collect()
    assert (gpu_regions.cuda_regions(""), library.opened) == ([], [])


def test_gpu_that_is_lost_during_a_copy_is_reported(library: FakeCuda) -> None:
    lost: list[str] = []
    regions = Regions(open_driver=lambda: CudaDriver(library), on_lost=lost.append)
    regions.register_cuda("r", library.allocate(bytes(32)), 1, 32)
    ((region, _),) = regions.use([RegionReference("r", 0, 8)])
    for status, told in ((2, []), (700, ["gpu:1"])):
        library.failures["cuMemcpyHtoD_v2"] = status
        with pytest.raises(RegionFailed, match=f"cannot be written: cuMemcpyHtoD_v2 failed with CUDA error {status}"):
            region.memory.write(0, b"12345678")
        assert lost == told


def test_a_request_reads_and_writes_device_memory(gpu_regions: Regions, library: FakeCuda) -> None:
    handle = library.allocate(bytes(range(32)))
    gpu_regions.register_cuda("r", handle, 0, 32)
    given = RegionInput("IN", "UINT8", (4,), RegionReference("r", 3, 4))
    request = RegionRequest.of(InferenceRequest("m", [given]), {"OUT": RegionReference("r", 20, 8)})
    responses: list[InferenceResponse] = []
    pending = PendingRequest(request, responses.append)
    attach(pending, request, gpu_regions)
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


def test_a_failed_read_is_an_error_of_the_request(gpu_regions: Regions, library: FakeCuda) -> None:
    gpu_regions.register_cuda("r", library.allocate(bytes(8)), 0, 8)
    given = RegionInput("IN", "UINT8", (8,), RegionReference("r", 0, 8))
    request = RegionRequest.of(InferenceRequest("m", [given]), {})
    attach(PendingRequest(request, lambda response: None), request, gpu_regions)
    library.failing = "cuMemcpyDtoH_v2"
    with pytest.raises(RegionFailed, match=r"cannot be read: cuMemcpyDtoH_v2 failed with CUDA error 700$"):
        _ = given.data
