"""Copies from a GPU: the calls of the driver's library, on a library that has memory of the CPU instead."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from trident_stub.device_memory import copy_to_host
from trident_stub.dlpack import Device, DeviceTensor
from trident_stub.errors import TritonModelException


class FakeDriver:
    """Notes the calls. `failing` is the one that fails."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self._failing = failing

    def __getitem__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self._failing:
                return 700
            if name == "cuMemcpyDtoH_v2":
                target, source, size = arguments
                ctypes.memmove(target, source.value, size.value)
            return 0

        return call


CALLS = [
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",
    "cuCtxSynchronize",
    "cuMemcpyDtoH_v2",
    "cuCtxPopCurrent_v2",
    "cuDevicePrimaryCtxRelease_v2",
]
BLOCK = ctypes.create_string_buffer(b"0123456789abcdef", 16)
TENSOR = DeviceTensor("FP32", (2, 2), Device(2, 1), ctypes.addressof(BLOCK), BLOCK)


def test_the_elements_are_copied() -> None:
    driver = FakeDriver()
    assert copy_to_host(TENSOR, driver) == b"0123456789abcdef"
    assert driver.calls == CALLS


def test_an_empty_tensor_needs_no_driver() -> None:
    driver = FakeDriver()
    assert copy_to_host(TENSOR._replace(shape=(0, 2)), driver) == b""
    assert driver.calls == []


@pytest.mark.parametrize("failing", CALLS[:4])
def test_a_call_that_fails(failing: str) -> None:
    driver = FakeDriver(failing)
    with pytest.raises(TritonModelException, match=f"{failing} failed with CUDA error 700"):
        copy_to_host(TENSOR, driver)
    begun = CALLS[: CALLS.index(failing)]
    assert ("cuDevicePrimaryCtxRelease_v2" in driver.calls) is ("cuDevicePrimaryCtxRetain" in begun)
    assert ("cuCtxPopCurrent_v2" in driver.calls) is ("cuCtxPushCurrent_v2" in begun)
