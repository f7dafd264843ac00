"""The calls of NVIDIA's driver, on a library that has memory of the CPU instead."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.cuda import (
    CudaDriver,
    CudaError,
    DeviceBlock,
    DriverLibrary,
    PinnedBuffers,
    compute_capability,
    gpu_ids,
    old_driver,
)


def absent(name: str) -> DriverLibrary:
    raise OSError(f"{name}: cannot open shared object file")


def test_driver_lists_gpus_and_their_capabilities() -> None:
    failing_init, failing_count, without_gpu = FakeCuda(), FakeCuda(), FakeCuda()
    failing_init.failing, failing_count.failing, without_gpu.devices = "cuInit", "cuDeviceGetCount", 0
    for load in (absent, lambda _: failing_init, lambda _: failing_count, lambda _: without_gpu):
        assert CudaDriver.open(load) is None
        assert gpu_ids(load=load) == ()
        assert compute_capability(0, load) == ""
    cuda = FakeCuda()
    cuda.capabilities = [(5, 2), (6, 0), (7, 5)]
    cuda.devices = 3
    assert gpu_ids(load=lambda name: cuda) == (0, 1, 2)
    assert gpu_ids(6.0, lambda name: cuda) == (1, 2)
    assert compute_capability(2, lambda name: cuda) == "7.5"
    assert compute_capability(5, lambda name: cuda) == ""


@pytest.mark.parametrize("failing", ["cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuIpcOpenMemHandle_v2"])
def test_failed_call_restores_the_threads_context(failing: str) -> None:
    library = FakeCuda()
    library.failing = failing
    with pytest.raises(CudaError, match=f"{failing} failed with CUDA error 700"):
        CudaDriver(library).open_handle(0, library.allocate(b"x"))
    assert library._current == []


# --- memory


def test_memory_block_grows_and_is_reused() -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    with driver.on(0):
        memory = DeviceBlock(driver)
        first = memory.address(1000)
        assert memory.address(10) == first
        memory.address(2000)
        assert [len(block) for block in cuda.memory.values()] == [2000]
        memory.close()
        memory.close()
        assert cuda.memory == {}
        # Also nothing has an address.
        assert memory.address(0)
        memory.close()


def test_failed_pinning_is_not_undone() -> None:
    cuda = FakeCuda()
    cuda.limit = 10
    pinned = PinnedBuffers(CudaDriver(cuda), 1)
    pinned.replace("X", np.empty(10, np.float32))
    pinned.replace("X", None)
    assert cuda.pinned == {}


# --- streams, whose copies happen when they are waited for


@pytest.mark.parametrize(
    ("needed", "supported"),
    [("13.0", "13.0"), ("12.8", "12.2"), ("12.8", "13.1"), ("", "12.2"), ("13.0", "")],
)
def test_recent_driver_is_accepted(needed: str, supported: str) -> None:
    assert old_driver(needed, "580.65.06", supported) == ""
