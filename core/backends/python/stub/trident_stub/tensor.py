"""Tensor, a name and an array; Triton's datatypes, the wire form of strings, and DLPack.

Source: docs/spec/python-backend.md section 4.3; dlpack.h of DLPack 0.8, which all libraries accept.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from struct import Struct
from typing import Any, Callable, NamedTuple, Protocol

import numpy as np

from .model import TritonModelException, text_of
from .wire import DATATYPES as WIRE_DATATYPES
from .wire import Description

Array = np.ndarray[Any, Any]

# numpy's letters for DLPack's type codes.
_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}

NUMBERS = {name: number for number, name in enumerate(WIRE_DATATYPES, 1)}

# Of the datatypes of a fixed size that numpy has.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(f"<{_KINDS[code]}{bits // 8}") for name, (code, bits) in WIRE_DATATYPES.items() if code in _KINDS
}

DATATYPES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}

# In a configuration string tensors are of TYPE_STRING; Python's own type stands for booleans, as in Triton.
TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    **{f"TYPE_{name}": dtype.type for name, dtype in NUMPY_DTYPES.items()},
    "TYPE_BOOL": bool,
    "TYPE_STRING": np.object_,
}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a datatype of a configuration, such as TYPE_FP32. Raises KeyError if numpy has none."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of what `Tensor.triton_dtype` returns; None if numpy has none."""
    return _TYPES.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of a numpy type's datatype; None if it has none."""
    try:
        # numpy takes None for float64.
        dtype = np.dtype("V" if data_type is None else data_type)
    except TypeError:
        return None
    return NUMBERS["BYTES"] if dtype.kind in "OSU" else NUMBERS.get(DATATYPES.get(dtype, ""))


_TYPES: dict[int, Any] = {
    **{NUMBERS[name]: dtype.type for name, dtype in NUMPY_DTYPES.items()},
    NUMBERS["BYTES"]: np.object_,
}


_LENGTH = Struct("<I")


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes:
    """The wire form, in C order, of an array of `bytes`, of `str`, or of objects, which are turned into text.

    Raises UnicodeEncodeError for a text that UTF-8 does not have.
    """
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for item in input_tensor.ravel().tolist():
        element = item if isinstance(item, bytes) else str(item).encode()
        parts.append(pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    """The elements of a wire form as an array of objects with one dimension. Raises TritonModelException."""
    # A slice of a numpy array would be an array, not bytes.
    wire = memoryview(encoded_tensor).cast("B") if not isinstance(encoded_tensor, bytes) else encoded_tensor
    read = _LENGTH.unpack_from
    elements: list[bytes] = []
    at, end = 0, len(wire)
    while at < end:
        start = at + 4
        if start > end:
            raise TritonModelException(f"the string tensor ends inside the length of its element {len(elements)}")
        at = start + read(wire, at)[0]
        if at > end:
            raise TritonModelException(f"the string tensor ends inside its element {len(elements)}")
        elements.append(bytes(wire[start:at]))
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


# Bytes up to which a copy costs less than a view that the encoder joins later.
_SMALL = 32768
# A frame has 4 GiB; what it has besides the tensor needs less than 1 MiB.
_LARGEST = (1 << 32) - (1 << 20)


class Tensor:
    """An input or an output. One that a model makes holds an array; one that arrives makes its array on demand.

    `_datatype` is the name of the datatype on the wire, such as "FP32"; `_shape` a sequence of ints. The server side
    reads both and `_contents()`.
    """

    __slots__ = ("_array", "_buffer", "_datatype", "_device", "_name", "_shape")

    _name: str
    _datatype: str
    _shape: Sequence[int]
    _array: Array | None
    # The wire bytes of what arrived, and of BYTES.
    _buffer: bytes | memoryview | None
    # Where the elements are, if numpy cannot reach them.
    _device: DeviceTensor | None

    def __init__(self, name: str | bytes, numpy_array: Array) -> None:
        """Keep a view of `numpy_array` if it is contiguous and has numbers, else a copy.

        Raises TypeError for other types, and TritonModelException for an empty name and for a dtype without a datatype.
        """
        if not isinstance(name, str):
            name = text_of(name, "Tensor(): the name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"Tensor(): the second argument must be a numpy array, not {type(numpy_array).__name__}")
        if type(numpy_array) is not np.ndarray and isinstance(numpy_array, np.ma.MaskedArray):
            numpy_array = numpy_array.data  # as in Triton, whatever the mask
        if not numpy_array.flags.c_contiguous:
            numpy_array = np.ascontiguousarray(numpy_array)
        self._name = name
        self._buffer = None
        self._device = None
        datatype = DATATYPES.get(numpy_array.dtype)
        if datatype is None:
            numpy_array, datatype = self._converted(numpy_array)
        self._array = numpy_array
        self._datatype = datatype
        self._shape = numpy_array.shape

    def _converted(self, array: Array) -> tuple[Array, str]:
        if array.dtype.kind in "OUS":
            # Encoded now, so that a text that UTF-8 does not have fails in the line that makes the tensor.
            self._buffer = serialize_byte_tensor(array)
            return array, "BYTES"
        native = array.dtype.newbyteorder("=")
        if native not in DATATYPES:
            raise TritonModelException(
                f"Tensor '{self._name}' has the numpy dtype '{array.dtype}', which has no Triton datatype."
            )
        return array.astype(native), DATATYPES[native]

    @classmethod
    def _view(cls, name: str, datatype: str, shape: Sequence[int], buffer: memoryview) -> Tensor:
        """A tensor that arrived: `buffer` holds its wire bytes, and it and its arrays keep the buffer alive.

        Called by the stub's channel for each input of a request and for each output of a model that was asked; it
        checked that the buffer has the size of the shape. `shape` may be shared by tensors and is never changed. Models
        write into their inputs: arrays of a read-only buffer are copies.
        """
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._buffer = buffer
        tensor._array = None
        tensor._device = None
        return tensor

    @classmethod
    def from_dlpack(cls, name: str | bytes, tensor: Any) -> Tensor:
        """A tensor on the memory of a DLPack capsule, or of an object that has one. Raises TritonModelException."""
        name = text_of(name, "Tensor.from_dlpack(): the name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        found = tensor_of(tensor)
        made = cls._view(name, found.datatype, found.shape, found.memory())
        if found.device.type != CPU.type:
            made._buffer = None
            made._device = found
        return made

    def name(self) -> str:
        return self._name

    def triton_dtype(self) -> int:
        """The number of the datatype, as in `triton_to_numpy_type`."""
        return NUMBERS[self._datatype]

    def shape(self) -> list[int]:
        return list(self._shape)

    def is_cpu(self) -> bool:
        return self._device is None

    def as_numpy(self) -> Array:
        """The array; of BYTES an array of `bytes` objects. Raises TritonModelException if numpy cannot have it."""
        array = self._array
        if array is None:
            array = self._array = self._make_array()
        return array

    def _make_array(self) -> Array:
        buffer = self._buffer
        if buffer is None:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        dtype = NUMPY_DTYPES.get(self._datatype)
        if dtype is not None:
            array: Array = np.ndarray(self._shape, dtype, buffer)
            return array if array.flags.writeable else array.copy()
        if self._datatype == "BYTES":
            return deserialize_bytes_tensor(buffer).reshape(self._shape)
        raise TritonModelException(
            "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
        )

    def to_dlpack(self) -> Any:
        """A DLPack capsule on the memory of this tensor. Raises TritonModelException for BYTES."""
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._device is not None:
            return capsule_of(self._device)
        # Of BF16 numpy can have the bytes.
        elements = np.frombuffer(self._buffer or b"", np.uint8) if self._datatype == "BF16" else self.as_numpy()
        return capsule_of(DeviceTensor(self._datatype, tuple(self._shape), CPU, elements.ctypes.data, elements))

    def __dlpack__(self, stream: Any = None) -> Any:
        """As `to_dlpack`: what is written here is complete, so that no stream has to wait."""
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        device: Device = CPU if self._device is None else self._device.device
        return device.type, device.number

    def _description(self) -> Description:
        return self._name, self._datatype, tuple(self._shape)

    def _contents(self) -> bytes | memoryview:
        """The wire bytes in C order, with `len` as their number; for BYTES each element after its length.

        Called by the stub's channel when it encodes a response, or a request to another model. Copies only what is on a
        device, and what is so small that a copy is cheaper than a view. Raises TritonModelException for what is too
        large, and for a device that fails.
        """
        array = self._array
        # The buffer of BYTES has the elements of its array; an array of numbers may be a changed copy of its buffer.
        if array is None or self._datatype == "BYTES":
            return copy_to_host(self._device) if self._buffer is None and self._device else self._buffer or b""
        if array.nbytes < _SMALL:
            return array.tobytes()
        if array.nbytes > _LARGEST:
            raise TritonModelException(
                f"Tensor '{self._name}' has {array.nbytes} bytes, which is more than the {_LARGEST} that can be sent."
            )
        return array.data.cast("B")

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype}, {list(self._shape)})"


# --- DLPack: tensors of other libraries, without a copy, and ours for them; copies from the memory of a GPU
#
# A capsule holds the address of a DLManagedTensor, and its name says whether it was taken. Whoever takes it calls the
# deleter when the memory is no longer needed.

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

_NAMES = {code: datatype for datatype, code in WIRE_DATATYPES.items()}


class DeviceTensor(NamedTuple):
    """Elements in C order at an address, which are there as long as `owner` is."""

    datatype: str
    shape: tuple[int, ...]
    device: Device
    address: int
    owner: Any

    @property
    def size(self) -> int:
        """Size of the elements in bytes."""
        return math.prod(self.shape) * WIRE_DATATYPES[self.datatype][1] // 8

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
        code, bits = WIRE_DATATYPES[tensor.datatype]
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
    if driver is None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise TritonModelException(f"cannot copy a tensor from the GPU: {error}") from error
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


def _call(driver: Driver, name: str, *arguments: object) -> None:
    status = driver[name](*arguments)
    if status:
        raise TritonModelException(f"cannot copy a tensor from the GPU: {name} failed with CUDA error {status}")
