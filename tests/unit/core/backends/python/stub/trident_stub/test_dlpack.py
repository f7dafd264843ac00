"""DLPack both ways, with numpy on the other side, and with capsules that lie.

Copies from a GPU: the calls of the driver's library, on a library that has memory of the CPU instead.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trident_stub import dlpack
from trident_stub.dlpack import CPU, Device, DeviceTensor, capsule_of, copy_to_host, tensor_of
from trident_stub.errors import TritonModelException
from trident_stub.tensor import NUMPY_DTYPES, Tensor

UNSUPPORTED = (
    "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
    "`__dlpack_device__` attributes"
)
STRIDED = "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    yield
    gc.collect()
    assert not dlpack._exported


@pytest.mark.parametrize("datatype", sorted(NUMPY_DTYPES))
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_both_ways_without_a_copy(datatype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, NUMPY_DTYPES[datatype])
    ours = Tensor("T", array)
    theirs = np.from_dlpack(ours)
    assert theirs.dtype == array.dtype
    assert np.array_equal(theirs, array)
    for source in (ours.to_dlpack(), array):
        back = Tensor.from_dlpack("B", source)
        assert back.shape() == list(shape)
        assert back.triton_dtype() == ours.triton_dtype()
        assert np.array_equal(back.as_numpy(), array)
        assert not array.size or np.shares_memory(back.as_numpy(), array)
        assert back._contents() == array.tobytes()
    assert ours.__dlpack_device__() == (1, 0)


def test_the_memory_lives_as_long_as_its_users() -> None:
    released: list[int] = []

    class Block(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            released.append(1)

    tensor = Tensor("T", np.arange(1000).view(Block))
    imported = Tensor.from_dlpack("T", tensor.to_dlpack())
    array = imported.as_numpy()
    del tensor, imported
    gc.collect()
    assert not released
    assert array[999] == 999
    del array
    gc.collect()
    assert released


def test_a_capsule_that_nobody_takes_frees_its_memory() -> None:
    capsule = Tensor("T", np.zeros(3)).to_dlpack()
    assert len(dlpack._exported) == 1
    del capsule
    assert not dlpack._exported


def test_bfloat16() -> None:
    wire = bytearray(b"\0\0\x80\x3f")
    arrived = Tensor._view("T", "BF16", (2,), memoryview(wire))
    back = Tensor.from_dlpack("B", arrived.to_dlpack())
    assert back.triton_dtype() == 14
    assert bytes(back._contents()) == wire


@pytest.mark.parametrize("array", [np.zeros((2, 3)).T, np.zeros(6)[::2], np.zeros((4, 4))[:, :2]])
def test_strides_are_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("T", array)
    assert str(caught.value) == STRIDED


@pytest.mark.parametrize("source", [None, [1], b"x", object()])
def test_what_is_no_tensor(source: Any) -> None:
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("T", source)
    assert str(caught.value) == UNSUPPORTED


def test_a_capsule_is_taken_once() -> None:
    capsule = Tensor("T", np.zeros(1)).to_dlpack()
    tensor = Tensor.from_dlpack("T", capsule)
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("T", capsule)
    assert str(caught.value) == UNSUPPORTED
    assert tensor.as_numpy().tolist() == [0]


def test_strings_have_no_capsule() -> None:
    with pytest.raises(TritonModelException) as caught:
        Tensor("T", np.array([b"a"], np.object_)).to_dlpack()
    assert str(caught.value) == "DLPack does not have support for string tensors."


def test_an_empty_name() -> None:
    with pytest.raises(TritonModelException, match=r"Tensor name cannot be an empty string\."):
        Tensor.from_dlpack("", np.zeros(1))


def test_other_devices_and_types() -> None:
    block = np.zeros(4, np.float32)
    with pytest.raises(TritonModelException) as caught:
        tensor_of(capsule_of(DeviceTensor("FP32", (4,), Device(10, 0), block.ctypes.data, block)))
    assert str(caught.value) == "DLDevice type 10 is not support by Python backend."
    with pytest.raises(TritonModelException, match="type code 5 with 64 bits and 1 lanes has no Triton datatype"):
        Tensor.from_dlpack("T", np.zeros(1, np.complex64))


def test_pinned_memory_is_the_cpus() -> None:
    block = np.arange(4, dtype=np.float32)
    found = tensor_of(capsule_of(DeviceTensor("FP32", (4,), Device(3, 0), block.ctypes.data, block)))
    assert found.device == CPU
    assert found.memory() == block.tobytes()


def test_a_tensor_of_a_gpu_stays_there() -> None:
    block = ctypes.create_string_buffer(16)
    address = ctypes.addressof(block)
    tensor = Tensor.from_dlpack("T", capsule_of(DeviceTensor("FP32", (4,), Device(2, 1), address, block)))
    assert not tensor.is_cpu()
    assert tensor.__dlpack_device__() == (2, 1)
    assert tensor.shape() == [4]
    with pytest.raises(TritonModelException) as caught:
        tensor.as_numpy()
    assert str(caught.value) == "Tensor is stored in GPU and cannot be converted to NumPy."
    assert tensor_of(tensor.to_dlpack()).address == address


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
