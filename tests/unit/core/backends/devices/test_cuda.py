"""The CUDA driver, replaced by a library that a machine without a GPU has as well."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from trident.core.backends.devices import CudaLibrary, LoadLibrary, compute_capability, gpu_ids


class Driver:
    """A driver with GPUs of the given compute capabilities. `code` is the result of its initialization."""

    def __init__(self, *capabilities: tuple[int, int], code: int = 0) -> None:
        self.capabilities = capabilities
        self.code = code

    def cuInit(self, flags: ctypes.c_uint) -> int:
        return self.code

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.capabilities)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: ctypes.c_int) -> int:
        device._obj.value = ordinal.value
        return 0 if ordinal.value < len(self.capabilities) else 101

    def cuDeviceGetAttribute(self, number: Any, attribute: ctypes.c_int, device: ctypes.c_int) -> int:
        number._obj.value = self.capabilities[device.value][{75: 0, 76: 1}[attribute.value]]
        return 0


def loads(*capabilities: tuple[int, int], code: int = 0) -> LoadLibrary:
    driver: Any = Driver(*capabilities, code=code)
    return lambda name: driver


def absent(name: str) -> CudaLibrary:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def test_gpu_ids_count_from_zero() -> None:
    assert gpu_ids(load=loads((9, 0), (9, 0), (9, 0))) == (0, 1, 2)


def test_gpu_ids_leave_out_gpus_below_the_minimum_compute_capability() -> None:
    assert gpu_ids(6.0, loads((5, 2), (6, 0), (7, 5))) == (1, 2)


@pytest.mark.parametrize("load", [absent, loads(), loads((9, 0), (9, 0), code=100)])
def test_gpu_ids_are_empty_without_a_working_driver_or_a_gpu(load: LoadLibrary) -> None:
    assert gpu_ids(load=load) == ()


def test_compute_capability_is_empty_for_an_unknown_gpu() -> None:
    assert compute_capability(1, loads((9, 0), (7, 5))) == "7.5"
    assert compute_capability(5, loads((9, 0), (7, 5))) == ""
    assert compute_capability(0, absent) == ""
