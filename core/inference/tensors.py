"""The one table of datatypes, and the packing of BYTES tensors.

A tensor in memory is a C-contiguous numpy array. Two datatypes have no numpy type: BYTES is an object array of
`bytes`, BF16 is a uint16 array of the bit patterns.
Source: docs/spec/model-config.md section 2.1, docs/spec/http.md section 6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from trident.core.errors import InvalidRequest
from trident.core.memo import Memo

Array = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview
Shape = tuple[int, ...]


def size_of(part: Buffer) -> int:
    return len(part) if isinstance(part, bytes) else memoryview(part).nbytes


def drop_sent(parts: list[Buffer], sent: int) -> None:
    """Remove the first `sent` bytes from `parts`, which hold more than that."""
    first = 0
    while sent >= size_of(parts[first]):
        sent -= size_of(parts[first])
        first += 1
    del parts[:first]
    parts[0] = memoryview(parts[0]).cast("B")[sent:]


@dataclass(frozen=True, slots=True)
class Datatype:
    """One row of the table. `size` is in bytes; 0 for BYTES, whose elements vary. `kind` is numpy's of `dtype`."""

    name: str
    config_name: str
    config_number: int
    size: int
    dtype: np.dtype[Any]
    kind: str
    onnx_name: str
    onnx_number: int


def _row(name: str, config_name: str, number: int, size: int, numpy_name: str, onnx: tuple[str, int]) -> Datatype:
    dtype = np.dtype(numpy_name)
    return Datatype(name, config_name, number, size, dtype, dtype.kind, *onnx)


DATATYPES: Final[tuple[Datatype, ...]] = (
    _row("BOOL", "TYPE_BOOL", 1, 1, "bool", ("tensor(bool)", 9)),
    _row("UINT8", "TYPE_UINT8", 2, 1, "uint8", ("tensor(uint8)", 2)),
    _row("UINT16", "TYPE_UINT16", 3, 2, "uint16", ("tensor(uint16)", 4)),
    _row("UINT32", "TYPE_UINT32", 4, 4, "uint32", ("tensor(uint32)", 12)),
    _row("UINT64", "TYPE_UINT64", 5, 8, "uint64", ("tensor(uint64)", 13)),
    _row("INT8", "TYPE_INT8", 6, 1, "int8", ("tensor(int8)", 3)),
    _row("INT16", "TYPE_INT16", 7, 2, "int16", ("tensor(int16)", 5)),
    _row("INT32", "TYPE_INT32", 8, 4, "int32", ("tensor(int32)", 6)),
    _row("INT64", "TYPE_INT64", 9, 8, "int64", ("tensor(int64)", 7)),
    _row("FP16", "TYPE_FP16", 10, 2, "float16", ("tensor(float16)", 10)),
    _row("FP32", "TYPE_FP32", 11, 4, "float32", ("tensor(float)", 1)),
    _row("FP64", "TYPE_FP64", 12, 8, "float64", ("tensor(double)", 11)),
    _row("BYTES", "TYPE_STRING", 13, 0, "object", ("tensor(string)", 8)),
    _row("BF16", "TYPE_BF16", 14, 2, "uint16", ("tensor(bfloat16)", 16)),
)
BY_NAME: Final[dict[str, Datatype]] = {row.name: row for row in DATATYPES}
# Stands for any unknown datatype in error texts.
INVALID_DATATYPE: Final = "<invalid>"
BY_CONFIG_NUMBER: Final[dict[int, Datatype]] = {row.config_number: row for row in DATATYPES}
BY_ONNX_NAME: Final[dict[str, Datatype]] = {row.onnx_name: row for row in DATATYPES}

# The datatypes that are numbers in JSON, with their letters in `struct`.
NUMBER_CODES: Final[dict[str, str]] = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}

BYTES: Final = BY_NAME["BYTES"]
MAX_ELEMENTS: Final = 2**63 - 1

_LENGTH: Final = struct.Struct("<I")
_SMALL: Final = 4096
# C code holds the interpreter, so millions of strings are processed in blocks of this many.
_BLOCK: Final = 1 << 15


def element_count(shape: Iterable[int]) -> int:
    """The number of elements of a fully specified shape; 1 for a scalar. Exact: Python integers do not overflow."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def shape_text(shape: Iterable[int]) -> str:
    """A shape as Triton prints it: `[1,16]`."""
    return "[" + ",".join(map(str, shape)) + "]"


def pack_bytes(elements: Iterable[bytes]) -> Buffer:
    """BYTES elements in the wire form: a little-endian uint32 length before each element."""
    blocks: list[bytes] = []
    parts: list[bytes] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
        if len(parts) >= _BLOCK:
            blocks.append(b"".join(parts))
            parts.clear()
    last = b"".join(parts)
    if not blocks:
        return last
    blocks.append(last)
    # A join would hold the interpreter for all blocks.
    whole = np.empty(sum(map(len, blocks)), np.uint8).data
    at = 0
    for block in blocks:
        whole[at : at + len(block)] = block
        at += len(block)
    return whole


def unpack_bytes(buffer: Buffer, expected: int, *, name: str, model: str, prefix: str = "") -> list[bytes]:
    """The elements of a BYTES tensor in wire form; exactly `expected` of them, or InvalidRequest with Triton's text.

    `prefix` goes before the texts that Triton prefixes with the request id.
    """
    view = memoryview(buffer)
    total = len(view)
    elements: list[bytes] = []
    offset = 0
    missing = ""
    while offset < total:
        if total - offset < 4:
            raise InvalidRequest(
                f"{prefix}incomplete string length indicator for inference input '{name}' for model '{model}', "
                f"expecting 4 bytes but only {total - offset} bytes available. "
                "Please make sure the string length indicator is in one buffer."
            )
        if len(elements) == expected:
            raise InvalidRequest(
                f"{prefix}unexpected number of string elements {expected + 1} for inference input '{name}' "
                f"for model '{model}', expecting {expected}"
            )
        (length,) = _LENGTH.unpack_from(view, offset)
        offset += 4
        if length > total - offset:
            missing = f"expecting string of length {length} but only {total - offset} bytes available"
        elements.append(bytes(view[offset : offset + length]))
        offset += length
    if len(elements) != expected:
        raise InvalidRequest(
            f"{prefix}expected {expected} string elements for inference input '{name}' for model '{model}', "
            f"got {len(elements)}"
        )
    if missing:  # last, because in Triton the backend finds it
        raise InvalidRequest(f"incomplete string data for inference input '{name}', {missing}")
    return elements


def wire_bytes(array: Array) -> Buffer:
    """The elements of a C-contiguous array as the v2 protocol sends them: little-endian, row-major, BYTES packed."""
    if array.dtype == object:
        return pack_bytes(array.reshape(-1).tolist())
    # Small tensors are copied: making the view costs more than the bytes.
    return array.tobytes() if array.nbytes <= _SMALL else array.reshape(-1).view(np.uint8).data


def array_of(data: memoryview | Array, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Raw bytes, or a flat array, as an aligned array of `shape`."""
    if type(data) is np.ndarray:
        return data if data.shape == shape else data.reshape(shape)
    array: Array = np.ndarray(shape, dtype, data)
    # A view into a body starts where the JSON ended. Backends may rely on element alignment, so unaligned data is
    # copied; the worker receives large bodies such that their tensors are aligned.
    return array if array.flags.aligned else array.copy()


def bytes_array(elements: Sequence[bytes], shape: Shape) -> Array:
    """An object array of `shape` that holds `elements` (numpy itself would choose a fixed-width type)."""
    count = len(elements)
    array = np.empty(count, dtype=object)
    if count <= _BLOCK:
        array[:] = elements
    else:
        for start in range(0, count, _BLOCK):
            array[start : start + _BLOCK] = elements[start : start + _BLOCK]
    return array.reshape(shape)


# Name, datatype, shape, first byte, byte after the last one.
LayoutEntry = tuple[str, str, Shape, int, int]


class TensorLayout:
    """The name, datatype, shape and position of each tensor. `size` is the size of the run in bytes.

    `layout_of` returns the same object for equal layouts, so that layouts are compared by identity: results for one
    request are reused for the next, and a batch of requests with one layout is one block.
    """

    __slots__ = ("entries", "size")

    def __init__(self, entries: tuple[LayoutEntry, ...]) -> None:
        self.entries = entries
        self.size = entries[-1][4] if entries else 0


_remembered: Final[Memo[tuple[LayoutEntry, ...], TensorLayout]] = Memo(1024)


def layout_of(tensors: Iterable[tuple[str, str, Shape, int]]) -> TensorLayout:
    """The layout of tensors without gaps between them, given as name, datatype, shape and size in bytes.

    Any thread. Two threads may each make a layout of the same tensors; both are valid.
    """
    entries: list[LayoutEntry] = []
    start = 0
    for name, datatype, shape, size in tensors:
        entries.append((name, datatype, shape, start, start + size))
        start += size
    key = tuple(entries)
    layout = _remembered.get(key)
    if layout is None:
        layout = _remembered[key] = TensorLayout(key)
    return layout


T_co = TypeVar("T_co", covariant=True)


class PackedTensors(Generic[T_co]):
    """A run of bytes and its layout, indexed and iterated over like a list of tensors.

    A subclass cuts the tensors out of the run, on first use: most of a request's path does not need them. One thread
    at a time.
    """

    __slots__ = ("_tensors", "content", "layout")

    def __init__(self, layout: TensorLayout, content: memoryview) -> None:
        self.layout = layout
        self.content = content
        self._tensors: list[T_co] | None = None

    def __len__(self) -> int:
        return len(self.layout.entries)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._list())

    def __reversed__(self) -> Iterator[T_co]:
        return reversed(self._list())

    def __getitem__(self, index: int) -> T_co:
        return self._list()[index]

    def _list(self) -> list[T_co]:
        tensors = self._tensors
        if tensors is None:
            tensors = self._tensors = self._cut()
        return tensors

    def _cut(self) -> list[T_co]:
        raise NotImplementedError
