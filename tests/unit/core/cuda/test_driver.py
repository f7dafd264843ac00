"""The calls of NVIDIA's driver, on a library that has memory of the CPU instead."""

from __future__ import annotations

import ctypes

import pytest

from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.cuda.driver import HANDLE_SIZE, CudaDriver, CudaError, DriverLibrary, IpcHandle


def test_a_machine_without_a_driver_or_a_gpu_has_none() -> None:
    def load(name: str) -> DriverLibrary:
        raise OSError(f"{name}: cannot open shared object file")

    assert CudaDriver.open(load) is None
    for failing in ("cuInit", "cuDeviceGetCount"):
        library = FakeCuda()
        library.failing = failing
        assert CudaDriver.open(lambda name, library=library: library) is None  # type: ignore[misc]
    library = FakeCuda()
    library.devices = 0
    assert CudaDriver.open(lambda name: library) is None


def test_the_handle_has_the_size_of_the_drivers() -> None:
    assert ctypes.sizeof(IpcHandle) == HANDLE_SIZE
    content = bytes(range(64))
    assert bytes(IpcHandle.from_buffer_copy(content)) == content


def test_copies_both_ways_in_the_devices_context() -> None:
    library = FakeCuda()
    handle = library.allocate(b"0123456789")
    driver = CudaDriver(library)
    address = driver.open_handle(1, handle)
    assert driver.size_from(1, address) == 10
    host = ctypes.create_string_buffer(4)
    driver.copy_to_host(1, address + 3, ctypes.addressof(host), 4)
    assert host.raw == b"3456"
    host.raw = b"abcd"
    driver.copy_to_device(1, address + 6, ctypes.addressof(host), 4)
    assert library.content(handle) == b"012345abcd"
    driver.close_handle(1, address)
    assert library.opened == []
    assert library.calls.count("cuDevicePrimaryCtxRetain") == 1
    assert library.calls.count("cuCtxPushCurrent_v2") == library.calls.count("cuCtxPopCurrent_v2")


@pytest.mark.parametrize(
    ("device_id", "text"), [(-1, "no device -1"), (2**40, "no device"), (2, "cuDeviceGet failed with CUDA error 101")]
)
def test_an_unknown_device_is_an_error(device_id: int, text: str) -> None:
    library = FakeCuda()
    with pytest.raises(CudaError, match=text):
        CudaDriver(library).open_handle(device_id, library.allocate(b"x"))


@pytest.mark.parametrize("failing", ["cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuIpcOpenMemHandle_v2"])
def test_a_call_that_fails_leaves_the_threads_context_as_it_was(failing: str) -> None:
    library = FakeCuda()
    library.failing = failing
    with pytest.raises(CudaError, match=f"{failing} failed with CUDA error 700"):
        CudaDriver(library).open_handle(0, library.allocate(b"x"))
    assert library._current == []
