"""numpy's npy format, one array in each file: decoded as views of the body, never by unpickling.

The header is a Python literal. It is matched by patterns and not evaluated, and its claims are checked against the
length of the body before memory is allocated.
Source: numpy's NEP 1 (the format); docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

import io
import re

import numpy as np

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.arrays.inputs import decode_arrays
from core.http.payloads.instance_signature import single_input
from core.http.payloads.output_columns import OutputColumn
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.inference.tensors import BYTES, MAX_ELEMENTS, Array, Buffer, element_count, shape_text

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 4096
_MAX_RANK = 32
_DESCR = re.compile(rb"""['"]descr['"]\s*:\s*['"]([<>|=]?)([a-zA-Z])(\d{0,6})['"]""")
_ORDER = re.compile(rb"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(rb"""['"]shape['"]\s*:\s*\(([\d,\sL]*)\)""")
# The sizes of booleans and numbers by kind; fixed-width bytes and text may have any size.
_SIZES = {"b": {1}, "i": {1, 2, 4, 8}, "u": {1, 2, 4, 8}, "f": {2, 4, 8}}
_NUMPY = "one array of booleans, numbers or fixed-width strings"
# Every fixed-width string takes the space of the longest one.
_MOST_STRING_BYTES = 256 << 20


def decode_npy(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode one array as the only input of a model. Raises InvalidRequest."""
    expected = single_input(spec, "a body in application/x-npy")
    return decode_arrays({expected.name: read_npy(body, "the body")}, spec)


def encode_npy(columns: list[OutputColumn]) -> list[bytes]:
    """Encode the only output. Raises InvalidRequest if there are several."""
    if len(columns) > 1:
        names = ", ".join(f"'{column.name}'" for column in columns)
        raise InvalidRequest(
            f"application/x-npy holds one array, the model has the outputs {names}",
            hint="ask for application/x-npz, or for one output",
        )
    return [write_npy(storable(columns[0], "application/x-npy"))]


def read_npy(content: Buffer, location: str) -> Array:
    """Read an array; a view if it has the machine's byte order. Raises InvalidRequest that begins with `location`."""
    view = memoryview(content)
    if bytes(view[:6]) != _MAGIC or len(view) < 12:
        raise InvalidRequest(f"{location} is not an array in numpy's format: it does not begin with \\x93NUMPY")
    version = view[6]
    start = 10 if version == 1 else 12
    length = int.from_bytes(view[8:start], "little")
    if version not in (1, 2, 3) or length > min(_LONGEST_HEADER, len(view) - start):
        raise InvalidRequest(f"{location}: the header of numpy's format is of an unknown version, too long or cut off")
    header = bytes(view[start : start + length])
    dtype, order, shape = _dtype(header, location), _ORDER.search(header), _shape(header, location)
    if not order:
        raise InvalidRequest(f"{location}: the header of numpy's format has no 'fortran_order'")
    elements = view[start + length :]
    count = element_count(shape)
    # numpy refuses a shape whose other dimensions overflow, even if one dimension is 0.
    if element_count(dim or 1 for dim in shape) * dtype.itemsize > MAX_ELEMENTS:
        raise InvalidRequest(f"{location}: no array can have the shape {shape_text(shape)}")
    if count * dtype.itemsize != len(elements):
        raise InvalidRequest(
            f"{location}: {count} elements of {dtype.itemsize} bytes for shape {shape_text(shape)} are "
            f"{count * dtype.itemsize} bytes, but there are {len(elements)}"
        )
    array: Array = np.frombuffer(elements, dtype, count) if count else np.zeros(0, dtype)
    array = array.reshape(shape, order="F" if order[1] == b"True" else "C")
    return np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)


def write_npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def storable(column: OutputColumn, format_name: str) -> Array:
    """The output as an array that needs no pickling: strings get a fixed width. Raises InvalidRequest if impossible."""
    array = column.array(format_name)
    if column.datatype is not BYTES:
        return array
    elements: list[bytes] = array.reshape(-1).tolist()
    longest = max(map(len, elements), default=0)
    if any(element.endswith(b"\0") for element in elements) or longest * len(elements) > _MOST_STRING_BYTES:
        raise InvalidRequest(
            f"output '{column.name}' has strings that end in NUL or differ much in length, which {format_name} "
            "cannot hold",
            hint="ask for application/json or application/jsonlines",
        )
    return np.array(elements, f"S{max(longest, 1)}").reshape(array.shape)


def _dtype(header: bytes, location: str) -> np.dtype[np.generic]:
    found = _DESCR.search(header)
    if not found:
        raise InvalidRequest(f"{location}: expected {_NUMPY}, got a structured array or no 'descr' at all")
    order, kind, size = found[1].decode(), found[2].decode(), int(found[3] or 0)
    if kind == "O":
        raise InvalidRequest(
            f"{location}: arrays of Python objects are pickled, and nothing is ever unpickled here: expected {_NUMPY}",
            hint="array.astype(np.float32) for numbers, array.astype('S') for strings",
        )
    if not size if kind in "SU" else size not in _SIZES.get(kind, ()):
        raise InvalidRequest(f"{location}: expected {_NUMPY}, got elements of type {kind}{size}")
    return np.dtype(f"{order}{kind}{size}")


def _shape(header: bytes, location: str) -> tuple[int, ...]:
    found = _SHAPE.search(header)
    texts = found[1].replace(b"L", b"").split(b",") if found else []
    try:
        shape = tuple(int(text) for text in texts if text.strip())
    except ValueError:
        found = None
    if not found or len(shape) > _MAX_RANK:
        raise InvalidRequest(f"{location}: the header of numpy's format has no 'shape', or an invalid one")
    return shape
