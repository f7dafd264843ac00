"""Tensors in a stub process: arrays, the wire form of strings, and DLPack both ways, with capsules that lie."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trident_stub import tensor as dlpack
from trident_stub.model import TritonModelException
from trident_stub.tensor import (
    CPU,
    NUMPY_DTYPES,
    Device,
    DeviceTensor,
    Tensor,
    capsule_of,
    copy_to_host,
    tensor_of,
)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TritonModelException) as caught:
        call()
    return str(caught.value)


def test_large_array_is_sent_without_a_copy() -> None:
    array = np.zeros(100_000, np.float32)
    contents = Tensor("T", array)._contents()
    array[0] = 1
    assert len(contents) == array.nbytes
    assert bytes(contents[:4]) == np.float32(1).tobytes()


def test_too_large_tensor_is_refused() -> None:
    # These zeros are never touched, so that they use no memory.
    with pytest.raises(TritonModelException, match="Tensor 'T' has 4294967296 bytes, which is more than the"):
        Tensor("T", np.zeros(1 << 32, np.uint8))._contents()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.arange(4, dtype=">i4"),
        np.ma.masked_array(np.arange(100_000), np.arange(100_000) == 7),
    ],
)
def test_other_layouts_are_put_in_order(array: np.ndarray[Any, Any]) -> None:
    made = Tensor("T", array)
    assert made.shape() == list(array.shape)
    assert bytes(made._contents()) == np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize(
    ("array", "wire"),
    [
        (np.array([["a", "\u00e9"]], np.object_), b"\1\0\0\0a\2\0\0\0\xc3\xa9"),
        (np.array([b"a\0", b""], np.object_), b"\2\0\0\0a\0\0\0\0\0"),
        (np.array(["a", "bc"]), b"\1\0\0\0a\2\0\0\0bc"),
        (np.array([b"a", b"bc"]), b"\1\0\0\0a\2\0\0\0bc"),
        (np.array([1, None], np.object_), b"\1\0\0\x001\4\0\0\0None"),
        (np.empty((0,), np.object_), b""),
        (np.array("scalar", np.object_), b"\6\0\0\0scalar"),
    ],
)
def test_strings_cross_in_their_wire_form(array: np.ndarray[Any, Any], wire: bytes) -> None:
    made = Tensor("T", array)
    assert made.triton_dtype() == 13
    assert made._contents() == wire
    assert made.shape() == list(array.shape)
    arrived = Tensor._view("T", "BYTES", array.shape, memoryview(wire))
    assert arrived.as_numpy().dtype == np.object_
    assert arrived.as_numpy().shape == array.shape
    assert all(isinstance(element, bytes) for element in arrived.as_numpy().flat)
    assert arrived._contents() == wire


def test_unencodable_string_fails_in_the_tensors_constructor() -> None:
    with pytest.raises(UnicodeEncodeError):
        Tensor("T", np.array(["\ud800"], np.object_))


def test_bfloat16_cannot_become_a_numpy_array() -> None:
    arrived = Tensor._view("T", "BF16", (2,), memoryview(b"\0\0\x80\x3f"))
    assert arrived.triton_dtype() == 14
    assert arrived._contents() == b"\0\0\x80\x3f"
    assert refusal(arrived.as_numpy) == (
        "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
    )


@pytest.mark.parametrize(
    ("name", "array", "text"),
    [
        ("T", [1, 2], "must be a numpy array, not list"),
        (None, np.zeros(1), "the name must be a str, not NoneType"),
    ],
)
def test_invalid_tensor_is_refused(name: Any, array: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Tensor(name, array)


# --- DLPack; GPU: the calls of the driver's library, on one that has memory of the CPU instead


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
def test_dlpack_shares_memory_both_ways(datatype: str, shape: tuple[int, ...]) -> None:
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


def test_dlpack_memory_lives_as_long_as_its_users() -> None:
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


def test_unused_capsule_frees_its_memory() -> None:
    capsule = Tensor("T", np.zeros(3)).to_dlpack()
    assert len(dlpack._exported) == 1
    del capsule
    assert not dlpack._exported


def test_bfloat16_passes_through_dlpack() -> None:
    wire = bytearray(b"\0\0\x80\x3f")
    arrived = Tensor._view("T", "BF16", (2,), memoryview(wire))
    back = Tensor.from_dlpack("B", arrived.to_dlpack())
    assert back.triton_dtype() == 14
    assert bytes(back._contents()) == wire


@pytest.mark.parametrize("array", [np.zeros((2, 3)).T, np.zeros(6)[::2], np.zeros((4, 4))[:, :2]])
def test_strides_are_refused(array: np.ndarray[Any, Any]) -> None:
    assert refusal(lambda: Tensor.from_dlpack("T", array)) == STRIDED


def test_capsule_is_consumed_once() -> None:
    capsule = Tensor("T", np.zeros(1)).to_dlpack()
    tensor = Tensor.from_dlpack("T", capsule)
    assert refusal(lambda: Tensor.from_dlpack("T", capsule)) == UNSUPPORTED
    assert tensor.as_numpy().tolist() == [0]


def test_unsupported_devices_and_datatypes_are_refused() -> None:
    block = np.zeros(4, np.float32)
    assert (
        refusal(lambda: tensor_of(capsule_of(DeviceTensor("FP32", (4,), Device(10, 0), block.ctypes.data, block))))
        == "DLDevice type 10 is not support by Python backend."
    )
    with pytest.raises(TritonModelException, match="type code 5 with 64 bits and 1 lanes has no Triton datatype"):
        Tensor.from_dlpack("T", np.zeros(1, np.complex64))


def test_pinned_memory_counts_as_memory_of_the_cpu() -> None:
    block = np.arange(4, dtype=np.float32)
    found = tensor_of(capsule_of(DeviceTensor("FP32", (4,), Device(3, 0), block.ctypes.data, block)))
    assert found.device == CPU
    assert found.memory() == block.tobytes()


def test_gpu_tensor_is_not_copied_to_the_host() -> None:
    block = ctypes.create_string_buffer(16)
    address = ctypes.addressof(block)
    tensor = Tensor.from_dlpack("T", capsule_of(DeviceTensor("FP32", (4,), Device(2, 1), address, block)))
    assert not tensor.is_cpu()
    assert tensor.__dlpack_device__() == (2, 1)
    assert tensor.shape() == [4]
    assert refusal(tensor.as_numpy) == "Tensor is stored in GPU and cannot be converted to NumPy."
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


def test_tensor_of_a_gpu_is_copied_to_the_host() -> None:
    driver = FakeDriver()
    assert copy_to_host(TENSOR, driver) == b"0123456789abcdef"
    assert driver.calls == CALLS


@pytest.mark.parametrize("failing", CALLS[:4])
def test_failed_call_of_the_driver_releases_the_context(failing: str) -> None:
    driver = FakeDriver(failing)
    with pytest.raises(TritonModelException, match=f"{failing} failed with CUDA error 700"):
        copy_to_host(TENSOR, driver)
    begun = CALLS[: CALLS.index(failing)]
    assert ("cuDevicePrimaryCtxRelease_v2" in driver.calls) is ("cuDevicePrimaryCtxRetain" in begun)
    assert ("cuCtxPopCurrent_v2" in driver.calls) is ("cuCtxPushCurrent_v2" in begun)
