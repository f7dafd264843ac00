from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from core.backends.devices.cuda import CudaLibrary, LoadLibrary
from core.backends.devices.pinned_memory import PinnedMemory


class Runtime:
    """A CUDA runtime that remembers what is pinned and refuses buffers of more than `limit` bytes."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.limit = limit
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: ctypes.c_void_p, size: ctypes.c_size_t, flags: ctypes.c_uint) -> int:
        if size.value > self.limit:
            return 2
        assert address.value is not None
        self.pinned[address.value] = size.value
        return 0

    def cudaHostUnregister(self, address: ctypes.c_void_p) -> int:
        assert address.value is not None
        del self.pinned[address.value]
        return 0


def loads(library: Any) -> LoadLibrary:
    return lambda name: library


def absent(name: str) -> CudaLibrary:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def test_a_buffer_stays_pinned_until_it_is_replaced() -> None:
    runtime = Runtime()
    pinned = PinnedMemory(loads(runtime)(""))
    first, second = np.empty(10, np.float32), np.empty(20, np.float32)
    pinned.replace("X", first)
    assert runtime.pinned == {first.ctypes.data: 40}
    pinned.replace("X", second)
    assert runtime.pinned == {second.ctypes.data: 80}
    pinned.replace("X", None)
    pinned.replace("X", None)
    assert runtime.pinned == {}


def test_a_buffer_that_cannot_be_pinned_is_not_unpinned() -> None:
    runtime = Runtime(limit=10)
    pinned = PinnedMemory(loads(runtime)(""))
    pinned.replace("X", np.empty(10, np.float32))
    pinned.replace("X", None)
    assert runtime.pinned == {}


def test_open_returns_none_without_a_cuda_runtime() -> None:
    assert PinnedMemory.open(absent) is None
    assert PinnedMemory.open(loads(Runtime())) is not None
