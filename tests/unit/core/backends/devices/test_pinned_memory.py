from __future__ import annotations

import numpy as np

from tests.unit.core.cuda.fake_cuda import FakeCuda
from trident.core.backends.devices import PinnedMemory
from trident.core.cuda.driver import CudaDriver


def test_a_buffer_stays_pinned_until_it_is_replaced() -> None:
    cuda = FakeCuda()
    pinned = PinnedMemory(CudaDriver(cuda), 0)
    first, second = np.empty(10, np.float32), np.empty(20, np.float32)
    pinned.replace("X", first)
    assert cuda.pinned == {first.ctypes.data: 40}
    pinned.replace("X", second)
    assert cuda.pinned == {second.ctypes.data: 80}
    pinned.replace("X", None)
    pinned.replace("X", None)
    assert cuda.pinned == {}


def test_a_buffer_that_cannot_be_pinned_is_not_unpinned() -> None:
    cuda = FakeCuda()
    cuda.limit = 10
    pinned = PinnedMemory(CudaDriver(cuda), 1)
    pinned.replace("X", np.empty(10, np.float32))
    pinned.replace("X", None)
    assert cuda.pinned == {}


def test_without_a_driver_nothing_is_pinned() -> None:
    assert PinnedMemory.open(0, lambda: None) is None
    assert PinnedMemory.open(0, lambda: CudaDriver(FakeCuda())) is not None
