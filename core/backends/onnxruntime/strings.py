"""Converts BYTES tensors into the forms that ONNX Runtime takes, and back.

ONNX Runtime's Python interface takes and returns text. Bytes that are UTF-8 are passed as text, including NUL. Other
bytes are passed as the C++ objects that ONNX Runtime itself uses, an array of `std::string`: inputs are laid out here,
and outputs are read here. The layout is that of GNU's C++ library (pointer, size, capacity or in-place buffer: 32
bytes). `strings_work` in `value_run.py` tests it before it is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.inference.tensors import Array, Shape, bytes_array

STRING_SIZE = 32
_WORDS = STRING_SIZE // 8


def to_text(array: Array) -> Array:
    """An object array of `bytes` as one of `str`. Raises UnicodeDecodeError for bytes that are not UTF-8."""
    return bytes_array([element.decode() for element in array.ravel().tolist()], array.shape)


def to_bytes(array: Array) -> Array:
    """An object array of `str` as one of `bytes`."""
    array = np.asarray(array)
    return bytes_array([element.encode() for element in array.ravel().tolist()], array.shape)


class StringObjects:
    """BYTES elements as C++ strings in memory that Python owns. ONNX Runtime must only read them.

    `array` has one string object for each element, in the tensor's shape. Keep this object alive while `array` is used.
    """

    def __init__(self, elements: Array) -> None:
        flat: list[bytes] = elements.ravel().tolist()
        # C++ guarantees a NUL after each string.
        self._text = np.frombuffer(b"\0".join(flat) + b"\0", np.uint8)
        sizes = np.fromiter(map(len, flat), np.uint64, len(flat))
        words: npt.NDArray[np.uint64] = np.zeros((len(flat), _WORDS), np.uint64)
        ends = np.cumsum(sizes + np.uint64(1))
        words[:, 0] = np.uint64(self._text.ctypes.data) + ends - sizes - np.uint64(1)
        words[:, 1] = sizes
        words[:, 2] = sizes
        self.array: Array = words.reshape(-1).view(f"V{STRING_SIZE}").reshape(elements.shape)


def read_strings(address: int, shape: Shape) -> Array:
    """A copy of the BYTES tensor of `shape` whose C++ strings are at `address`."""
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return bytes_array([], shape)
    words: Sequence[int] = (ctypes.c_uint64 * (_WORDS * count)).from_address(address)[:]
    pairs = zip(words[::_WORDS], words[1::_WORDS], strict=True)
    return bytes_array([ctypes.string_at(pointer, size) for pointer, size in pairs], shape)
