"""The driver and the runtime, by libraries that stand in for them where there is no GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.backends.devices.cuda import CudaLibrary, PinnedMemory, compute_capability, device_ids, missing_library

Load = Callable[[str], CudaLibrary]


class Driver:
    """A driver with `count` GPUs of compute capability 9.0; `code` is what it is initialised with."""

    def __init__(self, count: int = 2, code: int = 0) -> None:
        self.count = count
        self.code = code

    def cuInit(self, flags: ctypes.c_uint) -> int:
        return self.code

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device: Any, ordinal: ctypes.c_int) -> int:
        device._obj.value = ordinal.value
        return 0 if ordinal.value < self.count else 101

    def cuDeviceGetAttribute(self, number: Any, attribute: ctypes.c_int, device: ctypes.c_int) -> int:
        number._obj.value = {75: 9, 76: 0}[attribute.value]
        return 0


class Runtime:
    """A runtime that remembers what is pinned; it refuses buffers of more than `limit` bytes."""

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


def gives(library: Any) -> Load:
    return lambda name: library


def absent(name: str) -> CudaLibrary:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def test_gpus_are_counted() -> None:
    assert device_ids(gives(Driver(3))) == (0, 1, 2)


@pytest.mark.parametrize("load", [absent, gives(Driver(0)), gives(Driver(2, code=100))])
def test_no_gpus(load: Load) -> None:
    assert device_ids(load) == ()


def test_compute_capability() -> None:
    assert compute_capability(1, gives(Driver(2))) == "9.0"
    assert compute_capability(5, gives(Driver(2))) == ""
    assert compute_capability(0, absent) == ""


def test_a_buffer_is_pinned_until_it_is_replaced() -> None:
    runtime = Runtime()
    pinned = PinnedMemory(gives(runtime)(""))
    first, second = np.empty(10, np.float32), np.empty(20, np.float32)
    pinned.replace("X", first)
    assert runtime.pinned == {first.ctypes.data: 40}
    pinned.replace("X", second)
    assert runtime.pinned == {second.ctypes.data: 80}
    pinned.replace("X", None)
    pinned.replace("X", None)
    assert runtime.pinned == {}


def test_what_cannot_be_pinned_is_not_unpinned() -> None:
    runtime = Runtime(limit=10)
    pinned = PinnedMemory(gives(runtime)(""))
    pinned.replace("X", np.empty(10, np.float32))
    pinned.replace("X", None)
    assert runtime.pinned == {}


def test_without_a_runtime_nothing_is_pinned() -> None:
    assert PinnedMemory.open(absent) is None
    assert PinnedMemory.open(gives(Runtime())) is not None


def test_the_library_that_a_provider_lacks_is_named(tmp_path: Path) -> None:
    assert "libonnxruntime_providers_cuda.so" in missing_library("CUDAExecutionProvider", tmp_path)
    assert missing_library("CPUExecutionProvider", tmp_path) == ""
