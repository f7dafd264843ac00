"""Streams, on a driver whose copies happen when they are waited for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.cuda.driver import CudaDriver, CudaError, CudaStream, DeviceMemory


def test_copies_are_there_after_the_wait() -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    given, got = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    with driver.on(0):
        stream, memory = CudaStream(driver), DeviceMemory(driver)
        address = memory.address(given.nbytes)
        stream.copy_to_device(address, given.ctypes.data, given.nbytes)
        stream.copy_to_host(got.ctypes.data, address, got.nbytes)
        assert not got.any()
        stream.wait()
        assert got.tolist() == given.tolist()
        memory.close()
        stream.close()
    assert (cuda.memory, cuda.open_streams, cuda.open_events) == ({}, {}, {})


@pytest.mark.parametrize(("priority", "level"), [(0, 0), (1, -5), (-1, 0)])
def test_priorities_are_those_of_the_device(priority: int, level: int) -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    with driver.on(0):
        stream = CudaStream(driver, priority=priority)
        assert list(cuda.open_streams.values()) == [level]
        stream.close()


def test_a_stream_that_spins_asks_for_no_blocking_event() -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    with driver.on(0):
        streams = [CudaStream(driver, spins=spins) for spins in (False, True)]
        assert list(cuda.open_events.values()) == [3, 2]
        for stream in streams:
            stream.close()


def test_an_error_says_what_it_means() -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    cuda.limit = 1000
    with driver.on(1):
        memory = DeviceMemory(driver)
        with pytest.raises(CudaError, match=r"^cuMemAlloc_v2 failed with CUDA error 2$") as refused:
            memory.address(1001)
        assert refused.value.is_out_of_memory
        assert not refused.value.is_poison
        cuda.failing = "cuStreamSynchronize"
        with pytest.raises(CudaError) as lost:
            driver.call("cuStreamSynchronize")
        assert lost.value.is_poison
