"""DLPack: tensors of other libraries, without a copy, and ours for them; copies from the memory of a GPU.

A capsule holds the address of a DLManagedTensor, and its name says whether it was taken. Whoever takes it calls the
deleter when the memory is no longer needed.
Source: dlpack.h of DLPack 0.8, which all libraries accept; docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Protocol

import numpy as np

from .errors import TritonModelException
from .wire import DATATYPES

_FRESH = b"dltensor"
_TAKEN = b"used_dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("dl_tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class Device(NamedTuple):
    """A device: `type` is DLPack's DLDeviceType."""

    type: int
    number: int


CPU = Device(1, 0)
CUDA = 2
_PINNED = 3

_NAMES = {code: datatype for datatype, code in DATATYPES.items()}


class DeviceTensor(NamedTuple):
    """Elements in C order at an address, which are there as long as `owner` is."""

    datatype: str
    shape: tuple[int, ...]
    device: Device
    address: int
    owner: Any

    @classmethod
    def on_host(cls, datatype: str, shape: Sequence[int], elements: np.ndarray[Any, Any]) -> DeviceTensor:
        """The tensor in the memory of `elements`, which is contiguous."""
        return cls(datatype, tuple(shape), CPU, elements.ctypes.data, elements)

    @property
    def size(self) -> int:
        """Size of the elements in bytes."""
        return math.prod(self.shape) * DATATYPES[self.datatype][1] // 8

    def memory(self) -> memoryview:
        """The bytes of a tensor on the CPU, which keep it alive."""
        if not self.size or self.device.type != CPU.type:
            return memoryview(b"")
        block = (ctypes.c_char * self.size).from_address(self.address)
        block.owner = self  # type: ignore[attr-defined]
        return memoryview(block).cast("B")


class _Imported:
    """A DLManagedTensor taken out of its capsule, which is deleted with this object."""

    def __init__(self, address: int) -> None:
        self.managed = _DLManagedTensor.from_address(address)
        self._address = address

    def __del__(self) -> None:
        if self.managed.deleter:
            self.managed.deleter(self._address)


def tensor_of(source: Any) -> DeviceTensor:
    """Take the tensor out of a capsule, or of an object that gives one. Raises TritonModelException."""
    if type(source).__name__ == "PyCapsule":
        capsule = source
    elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
        capsule = source.__dlpack__()
    else:
        capsule = None
    if capsule is None or not _is_valid(id(capsule), _FRESH):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            "`__dlpack_device__` attributes"
        )
    taken = _Imported(_get_pointer(id(capsule), _FRESH))
    _set_name(capsule, _TAKEN)
    return _described(taken.managed.dl_tensor, taken)


def _described(tensor: _DLTensor, owner: Any) -> DeviceTensor:
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    if tensor.strides and not _is_contiguous(shape, tensor.strides[: tensor.ndim]):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    if tensor.device_type not in (CPU.type, CUDA, _PINNED):
        raise TritonModelException(f"DLDevice type {tensor.device_type} is not support by Python backend.")
    datatype = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        raise TritonModelException(
            f"DLPack's type code {tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes has no Triton datatype."
        )
    # Pinned memory belongs to the CPU.
    device = Device(CUDA, tensor.device_id) if tensor.device_type == CUDA else CPU
    return DeviceTensor(datatype, shape, device, (tensor.data or 0) + tensor.byte_offset, owner)


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides)):
        # The stride of an axis of one element is never used.
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


class _Exported:
    """A DLManagedTensor in a capsule, with all that it points to. Kept until its deleter is called."""

    def __init__(self, tensor: DeviceTensor) -> None:
        self._owner = tensor.owner
        self._shape = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
        code, bits = DATATYPES[tensor.datatype]
        self.managed = _DLManagedTensor(
            dl_tensor=_DLTensor(
                data=tensor.address,
                device_type=tensor.device.type,
                device_id=tensor.device.number,
                ndim=len(tensor.shape),
                code=code,
                bits=bits,
                lanes=1,
                shape=self._shape,
            ),
            deleter=_delete,
        )


_exported: dict[int, _Exported] = {}


def _forget(address: int) -> None:
    _exported.pop(address, None)


# Called while the capsule is being freed: it may be used by its address only, and never become an object again.
def _forget_capsule(capsule: int) -> None:
    if _is_valid(capsule, _FRESH):
        _forget(_get_pointer(capsule, _FRESH))


_delete = _Deleter(_forget)
_capsule_ends = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget_capsule)


def capsule_of(tensor: DeviceTensor) -> Any:
    """A new capsule with the tensor, whose owner stays alive until the capsule, or its taker, is done with it."""
    exported = _Exported(tensor)
    address = ctypes.addressof(exported.managed)
    _exported[address] = exported
    return _new(address, _FRESH, _capsule_ends)


_api = ctypes.pythonapi
# Prototypes of their own: the attributes of ctypes.pythonapi belong to every library of the process.
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))


class Driver(Protocol):
    """The functions of libcuda by their names; each returns a status, 0 for success."""

    def __getitem__(self, name: str) -> Callable[..., Any]: ...


def copy_to_host(tensor: DeviceTensor, driver: Driver | None = None) -> bytes:
    """The elements of a tensor of a GPU, after the work queued there. Raises TritonModelException."""
    if not tensor.size:
        return b""
    driver = driver or _installed_driver()
    context = ctypes.c_void_p()
    number = tensor.device.number
    elements = ctypes.create_string_buffer(tensor.size)
    # The context that the model's framework uses too: it exists, and stays.
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    try:
        _call(driver, "cuCtxPushCurrent_v2", context)
        try:
            _call(driver, "cuCtxSynchronize")
            size = ctypes.c_size_t(tensor.size)
            _call(driver, "cuMemcpyDtoH_v2", elements, ctypes.c_uint64(tensor.address), size)
        finally:
            _call(driver, "cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        _call(driver, "cuDevicePrimaryCtxRelease_v2", number)
    return elements.raw


def _installed_driver() -> Driver:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise TritonModelException(f"cannot copy a tensor from the GPU: {error}") from error


def _call(driver: Driver, name: str, *arguments: object) -> None:
    status = driver[name](*arguments)
    if status:
        raise TritonModelException(f"cannot copy a tensor from the GPU: {name} failed with CUDA error {status}")
