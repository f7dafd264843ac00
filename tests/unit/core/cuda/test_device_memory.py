"""Memory on a device that grows."""

from __future__ import annotations

import pytest

from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.cuda.driver import CudaDriver, CudaError, DeviceMemory


def test_a_block_grows_and_is_kept() -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    with driver.on(0):
        memory = DeviceMemory(driver)
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


def test_after_a_failure_it_asks_again() -> None:
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    with driver.on(0):
        memory = DeviceMemory(driver)
        memory.address(100)
        cuda.limit = 500
        with pytest.raises(CudaError):
            memory.address(600)
        assert cuda.memory == {}
        assert memory.address(400)
        memory.close()
