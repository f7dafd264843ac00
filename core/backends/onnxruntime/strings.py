"""BYTES tensors on their way into ONNX Runtime and out of it.

Its Python interface takes and gives text. Bytes that are UTF-8 pass as text, NUL included. Others pass as the C++
objects that ONNX Runtime itself keeps: an array of `std::string`, laid out here for the inputs and read here from the
outputs. The layout is that of GNU's C++ library (pointer, size, capacity or in-place buffer: 32 bytes); it is tried
out before it is trusted (`core/backends/onnxruntime/values.py`).
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
    """BYTES elements laid out as C++ strings in memory that Python owns. ONNX Runtime must only read them.

    `array` holds one string object per element, in the tensor's shape. Both it and its owner must outlive their use.
    """

    def __init__(self, elements: Array) -> None:
        flat: list[bytes] = elements.ravel().tolist()
        # Each one is followed by a NUL, which C++ promises behind a string.
        self._text = np.frombuffer(b"\0".join(flat) + b"\0", np.uint8)
        sizes = np.fromiter(map(len, flat), np.uint64, len(flat))
        words: npt.NDArray[np.uint64] = np.zeros((len(flat), _WORDS), np.uint64)
        ends = np.cumsum(sizes + np.uint64(1))
        words[:, 0] = np.uint64(self._text.ctypes.data) + ends - sizes - np.uint64(1)
        words[:, 1] = sizes
        words[:, 2] = sizes
        self.array: Array = words.reshape(-1).view(f"V{STRING_SIZE}").reshape(elements.shape)


def read_strings(address: int, shape: Shape) -> Array:
    """The BYTES tensor of `shape` whose C++ strings lie at `address`, copied."""
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return bytes_array([], shape)
    words: Sequence[int] = (ctypes.c_uint64 * (_WORDS * count)).from_address(address)[:]
    pairs = zip(words[::_WORDS], words[1::_WORDS], strict=True)
    return bytes_array([ctypes.string_at(pointer, size) for pointer, size in pairs], shape)
