"""Binary formats: numpy's npy and npz, sparse matrices of scipy in npz, and raw bytes.

An npy is decoded as a view of the body, never by unpickling. Its header is a Python literal. It is matched by patterns
and not evaluated, and its claims are checked against the length of the body before memory is allocated.
Source: numpy's NEP 1; scipy's `scipy/sparse/_matrix_io.py`; APPNOTE.TXT of the zip format, section 4.3.16 (the end of
the directory); docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.body import parse_json
from trident.core.http.payloads.json import decode_json, raw_row
from trident.core.http.payloads.payload import (
    DecodedPayload,
    DecodeRules,
    DocumentForm,
    OutputColumn,
    check_names,
    decode_arrays,
    document_form,
    instance_signature,
    mismatch,
    single_input,
)
from trident.core.inference.tensors import BYTES, MAX_ELEMENTS, Array, Buffer, bytes_array, element_count, shape_text

# --- npy

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 4096
_MAX_RANK = 32
_DESCR = re.compile(rb"""['"]descr['"]\s*:\s*['"]([<>|=]?)([a-zA-Z])(\d{0,6})['"]""")
_ORDER = re.compile(rb"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(rb"""['"]shape['"]\s*:\s*\(([\d,\sL]*)\)""")
# The sizes of booleans and numbers by kind; fixed-width bytes and text may have any size.
_SIZES = {"b": {1}, "i": {1, 2, 4, 8}, "u": {1, 2, 4, 8}, "f": {2, 4, 8}}
_NUMPY = "one array of booleans, numbers or fixed-width strings"
_LARGEST_CODE = 0x10FFFF
# 0xD800 to 0xDFFF.
_SURROGATES = 0xD800 >> 11
# Every fixed-width string takes the space of the longest one.
_MOST_STRING_BYTES = 256 << 20


def decode_npy(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode one array as the only input of a model. Raises InvalidRequest."""
    expected = single_input(spec, "a body in application/x-npy")
    return decode_arrays({expected.name: read_npy(body, "the body")}, spec)


def encode_npy(columns: list[OutputColumn]) -> bytes:
    """Encode the only output. Raises InvalidRequest if there are several."""
    if len(columns) > 1:
        names = ", ".join(f"'{column.name}'" for column in columns)
        raise InvalidRequest(
            f"application/x-npy holds one array, the model has the outputs {names}",
            hint="ask for application/x-npz, or for one output",
        )
    return write_npy(storable(columns[0], "application/x-npy"))


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
    array = np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)
    if dtype.kind == "U":
        codes = array.reshape(-1).view(np.uint32)
        if ((codes > _LARGEST_CODE) | (codes >> 11 == _SURROGATES)).any():
            raise InvalidRequest(f"{location}: a text has a code that is not a Unicode character")
    return array


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


# --- npz

_SUFFIX = ".npy"
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_LONGEST_COMMENT = 65535
_ZIP64_LOCATOR = b"PK\x06\x07"
_LOCATOR_SIZE = 20
# A member takes about 100 bytes of the directory, and 100 times as much memory once it is parsed.
_LARGEST_DIRECTORY = 1 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
_NO_ARCHIVE = "the body is not a numpy archive (application/x-npz)"


def decode_npz(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode an array for each input, or a sparse matrix as the only input.

    Raises InvalidRequest, also if the arrays have more than `rules.max_input_size` bytes in all.
    """
    content = bytes(body)
    end = content.rfind(_END_SIGNATURE, max(0, len(content) - _LONGEST_COMMENT - _END.size))
    if end < 0 or len(content) - end < _END.size:
        raise InvalidRequest(f"{_NO_ARCHIVE}: it has no directory at its end")
    size = _END.unpack_from(content, end)[5]
    locator = content[max(0, end - _LOCATOR_SIZE) : end]
    if size > _LARGEST_DIRECTORY or locator.startswith(_ZIP64_LOCATOR):
        raise InvalidRequest(f"{_NO_ARCHIVE}: its directory is larger than {_LARGEST_DIRECTORY} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members: dict[str, zipfile.ZipInfo] = {}
            for member in archive.infolist():
                name = member.filename.removesuffix(_SUFFIX)
                if name in members:
                    raise InvalidRequest(f"the archive has the array '{name[:60]}' twice")
                members[name] = member
            sparse = members.keys() >= _COMMON and spec.inputs.keys().isdisjoint(members)
            if sparse:
                expected = single_input(spec, "a sparse matrix")
            else:
                check_names(members, spec, "the archive")
            for name, member in members.items():
                if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
                    raise InvalidRequest(
                        f"array '{name[:60]}' is encrypted, or compressed in a way that numpy does not write"
                    )
            total = sum(member.file_size for member in members.values())
            if total > rules.max_input_size:
                raise InvalidRequest(
                    f"the arrays of the archive have {total} bytes, at most {rules.max_input_size} are allowed"
                )
            arrays = {name: _read(archive, member, name) for name, member in members.items()}
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError) as error:
        raise InvalidRequest(f"{_NO_ARCHIVE}: {error}") from None
    if sparse:
        arrays = {expected.name: dense_matrix(arrays, expected.datatype.size, rules.max_input_size)}
    return decode_arrays(arrays, spec)


def encode_npz(columns: list[OutputColumn]) -> bytes:
    """Encode an uncompressed array for each output. Raises InvalidRequest for rows of different shapes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for column in columns:
            # A ZipInfo, because a plain name would put the time of day into the file.
            member = zipfile.ZipInfo(column.name + _SUFFIX)
            archive.writestr(member, write_npy(storable(column, "application/x-npz")))
    return file.getvalue()


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    # Inflates at most the size in the directory; the checksum fails if that size is too small.
    with archive.open(member) as file:
        return read_npy(file.read(member.file_size + 1), f"array '{name[:60]}'")


# --- sparse matrices
#
#         csr, csc   data, indices, indptr: the values of each row (column), and the columns (rows) of the values
#         coo        data, row, col: the position of each value
#
# Values with the same position are added, as in scipy. Shape and indices are checked before memory is allocated.

_COMMON = frozenset({"format", "shape", "data"})
_LONGEST_FORMAT = 16
_MATRIX = "the sparse matrix"
# Bytes of an index in memory, whatever its type in the file.
_INDEX_SIZE = 8

Arrays = Mapping[str, Array]


def dense_matrix(arrays: Arrays, itemsize: int, limit: int) -> Array:
    """The dense matrix of the arrays of an archive, in the type of its values.

    Raises InvalidRequest, also for more than `limit` bytes, where an element counts at least `itemsize` bytes.
    """
    name = _format(arrays["format"])
    if name not in ("csr", "csc", "coo"):
        raise InvalidRequest(
            f"{_MATRIX} has a format that is not supported, supported are: csr, csc, coo",
            hint="matrix.tocsr() makes one of these",
        )
    shape = arrays["shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or int(shape.min()) < 1:
        raise InvalidRequest(f"{_MATRIX}: 'shape' must be the numbers of rows and columns, at least one of each")
    rows, columns = shape.tolist()
    data = _one_dimension(arrays, "data")
    if data.dtype.kind not in "biuf":
        raise InvalidRequest(f"{_MATRIX}: 'data' must be numbers or booleans, not {data.dtype}")
    size = rows * columns * max(itemsize, data.dtype.itemsize)
    if len(data) * _INDEX_SIZE > limit:
        raise InvalidRequest(f"{_MATRIX} has {len(data)} values, at most {limit // _INDEX_SIZE} are allowed")
    if size > limit:
        raise InvalidRequest(
            f"{_MATRIX} of shape {shape_text((rows, columns))} is {size} bytes when it is dense, at most {limit} are "
            "allowed. Use --http-max-input-size to increase the limit.",
            hint="send fewer rows at once",
        )
    if name == "csr":
        values, row, column = _compressed(arrays, data, rows, columns)
    elif name == "csc":
        values, column, row = _compressed(arrays, data, columns, rows)
    else:
        values, row, column = data, _one_dimension(arrays, "row"), _one_dimension(arrays, "col")
        if not len(row) == len(column) == len(data):
            raise InvalidRequest(f"{_MATRIX}: 'row', 'col' and 'data' must have the same length")
        row, column = _indices(row, "row", rows), _indices(column, "col", columns)
    dense = np.zeros(rows * columns, data.dtype)
    np.add.at(dense, row * columns + column, values)
    return dense.reshape(rows, columns)


def _compressed(arrays: Arrays, data: Array, lines: int, length: int) -> tuple[Array, Array, Array]:
    """The values, their lines (rows of csr, columns of csc), and their positions in these lines."""
    ends, positions = _one_dimension(arrays, "indptr"), _one_dimension(arrays, "indices")
    if len(positions) != len(data):
        raise InvalidRequest(f"{_MATRIX}: 'indices' and 'data' must have the same length")
    if len(ends) != lines + 1:
        raise InvalidRequest(f"{_MATRIX}: 'indptr' must have {lines + 1} numbers, it has {len(ends)}")
    ends = _indices(ends, "indptr", len(data) + 1)
    counts = np.diff(ends)
    if ends[0] != 0 or (counts < 0).any():
        raise InvalidRequest(f"{_MATRIX}: 'indptr' must begin at 0 and never decrease")
    # Entries after the last index are unused space that scipy allocated.
    used = slice(int(ends[-1]))
    return data[used], np.repeat(np.arange(lines), counts), _indices(positions[used], "indices", length)


def _indices(array: Array, name: str, bound: int) -> Array:
    """The array as indices from 0 to `bound` - 1. Raises InvalidRequest."""
    if array.dtype.kind not in "iu":
        raise InvalidRequest(f"{_MATRIX}: '{name}' must be whole numbers, not {array.dtype}")
    if len(array) and not 0 <= int(array.min()) <= int(array.max()) < bound:
        raise InvalidRequest(f"{_MATRIX}: '{name}' has a number that is not from 0 to {bound - 1}")
    return array.astype(np.int64)


def _one_dimension(arrays: Arrays, name: str) -> Array:
    array = arrays.get(name)
    if array is None or array.ndim != 1:
        found = "there is none" if array is None else f"it has {array.ndim}"
        raise InvalidRequest(f"{_MATRIX}: '{name}' must be an array of one dimension, {found}")
    return array


def _format(array: Array) -> str:
    if array.ndim or array.dtype.kind not in "SU" or array.dtype.itemsize > _LONGEST_FORMAT:
        return ""
    value: bytes | str = array.item()
    return value.decode("latin-1") if isinstance(value, bytes) else value


# --- raw bytes
#
# They are not in the table of formats, because `application/octet-stream` does not describe its content: adapters try
# all formats first.


def decode_octets(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode JSON, which many clients send under this type, or else raw bytes as `decode_raw`. Raises InvalidRequest.

    For a string input only an object with instances or inputs counts as JSON, because other JSON may be the string.
    """
    (expected,) = spec.inputs.values()
    if expected.datatype is BYTES and document_form(body) is DocumentForm.BARE:
        return decode_raw(body, spec, rules)
    try:
        return decode_json(body, spec, rules)
    except InvalidRequest:
        # Raw numbers can begin with the byte of a bracket, so only valid JSON gets the JSON decoder's error.
        if _is_meant(body):
            raise
    return decode_raw(body, spec, rules)


def decode_raw(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode little-endian, row-major elements: one or more instances, one if a dim is variable, one string for BYTES.

    Raises InvalidRequest for a number of bytes that does not fit.
    """
    single_input(spec, "a body of raw bytes")
    signature = instance_signature(spec, None)
    ((name, expected),) = signature.inputs.items()
    if not len(body):
        raise InvalidRequest(f"the body is empty: expected the bytes of input '{name}'")
    if expected.datatype is BYTES:
        if any(dim not in (1, -1) for dim in expected.dims):
            raise InvalidRequest(f"raw bytes are one string, input '{name}' needs {element_count(expected.dims)}")
        array = bytes_array([bytes(body)], (1,) * (1 + len(expected.dims)))
        return DecodedPayload(arrays={name: array}, count=1, stacked=signature.stacked)
    size = element_count(expected.dims) * expected.datatype.size
    if -1 in expected.dims:
        array = raw_row(memoryview(body), expected, f"input '{name}'")[np.newaxis]
    elif size and len(body) % size == 0:
        rows = replace(expected, dims=(len(body) // size, *expected.dims), model_dims=None)
        array = raw_row(memoryview(body), rows, f"input '{name}'")
    else:
        raise mismatch(f"input '{name}'", f"a multiple of {size} bytes", str(len(body)))
    return DecodedPayload(arrays={name: array}, count=len(array), stacked=signature.stacked)


def _is_meant(text: Buffer) -> bool:
    """True if the text is valid JSON in one of the forms of a request."""
    try:
        document = parse_json(text)
    except InvalidRequest:
        return False
    return type(document) is list or (
        type(document) is dict and not document.keys().isdisjoint(("instances", "inputs"))
    )
