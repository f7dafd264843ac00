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
# Strings that are converted at a time: a step in C holds the interpreter's lock, for which other threads wait.
BLOCK = 1 << 14


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
        flat = elements.ravel()
        words: npt.NDArray[np.uint64] = np.zeros((flat.size, _WORDS), np.uint64)
        self._texts = [_lay_out(flat[at : at + BLOCK].tolist(), words[at : at + BLOCK]) for at in _blocks(flat.size)]
        self.array: Array = words.reshape(-1).view(f"V{STRING_SIZE}").reshape(elements.shape)


def _lay_out(strings: list[bytes], words: npt.NDArray[np.uint64]) -> Array:
    """Fill in the `words` of the string objects. Returns the text that they point to."""
    # C++ guarantees a NUL after each string.
    text = np.frombuffer(b"\0".join(strings) + b"\0", np.uint8)
    sizes = np.fromiter(map(len, strings), np.uint64, len(strings))
    ends = np.cumsum(sizes + np.uint64(1))
    words[:, 0] = np.uint64(text.ctypes.data) + ends - sizes - np.uint64(1)
    words[:, 1] = sizes
    words[:, 2] = sizes
    return text


def read_strings(address: int, shape: Shape) -> Array:
    """A copy of the BYTES tensor of `shape` whose C++ strings are at `address`."""
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return bytes_array([], shape)
    array = np.empty(count, object)
    for at in _blocks(count):
        size = min(BLOCK, count - at)
        words: Sequence[int] = (ctypes.c_uint64 * (_WORDS * size)).from_address(address + STRING_SIZE * at)[:]
        pairs = zip(words[::_WORDS], words[1::_WORDS], strict=True)
        array[at : at + size] = [ctypes.string_at(pointer, length) for pointer, length in pairs]
    return array.reshape(shape)


def _blocks(count: int) -> range:
    return range(0, count, BLOCK)
