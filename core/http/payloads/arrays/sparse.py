"""Makes sparse matrices dense, in the format of scipy.sparse.save_npz, which the platform's SDK sends.

    csr, csc   data, indices, indptr: the values of each row (column), and the columns (rows) of the values
    coo        data, row, col: the position of each value

Values with the same position are added, as in scipy. Shape and indices are checked before memory is allocated.
Source: scipy's `scipy/sparse/_matrix_io.py`; docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np

from core.errors import InvalidRequest
from core.inference.tensors import Array, shape_text

_COMMON = frozenset({"format", "shape", "data"})
_LONGEST_FORMAT = 16
_MATRIX = "the sparse matrix"
# Bytes of an index in memory, whatever its type in the file.
_INDEX_SIZE = 8

Arrays = Mapping[str, Array]
Positions = tuple[Array, Array, Array]


def is_sparse(names: Container[str]) -> bool:
    """Whether an archive with arrays of these names holds a sparse matrix."""
    return all(name in names for name in _COMMON)


def dense_matrix(arrays: Arrays, itemsize: int, limit: int) -> Array:
    """The dense matrix of the arrays of an archive, in the type of its values.

    Raises InvalidRequest, also for more than `limit` bytes, where an element counts at least `itemsize` bytes.
    """
    read = _FORMATS.get(_format(arrays["format"]))
    if read is None:
        raise InvalidRequest(
            f"{_MATRIX} has a format that is not supported, supported are: {', '.join(_FORMATS)}",
            hint="matrix.tocsr() makes one of these",
        )
    rows, columns = _shape(arrays["shape"])
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
    values, row, column = read(arrays, data, rows, columns)
    dense = np.zeros(rows * columns, data.dtype)
    np.add.at(dense, row * columns + column, values)
    return dense.reshape(rows, columns)


def _csr(arrays: Arrays, data: Array, rows: int, columns: int) -> Positions:
    return _compressed(arrays, data, rows, columns)


def _csc(arrays: Arrays, data: Array, rows: int, columns: int) -> Positions:
    values, column, row = _compressed(arrays, data, columns, rows)
    return values, row, column


def _coo(arrays: Arrays, data: Array, rows: int, columns: int) -> Positions:
    row, column = _one_dimension(arrays, "row"), _one_dimension(arrays, "col")
    if not len(row) == len(column) == len(data):
        raise InvalidRequest(f"{_MATRIX}: 'row', 'col' and 'data' must have the same length")
    return data, _indices(row, "row", rows), _indices(column, "col", columns)


_FORMATS: dict[str, Callable[[Arrays, Array, int, int], Positions]] = {"csr": _csr, "csc": _csc, "coo": _coo}


def _compressed(arrays: Arrays, data: Array, lines: int, length: int) -> Positions:
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


def _shape(array: Array) -> tuple[int, int]:
    if array.shape != (2,) or array.dtype.kind not in "iu" or int(array.min()) < 1:
        raise InvalidRequest(f"{_MATRIX}: 'shape' must be the numbers of rows and columns, at least one of each")
    rows, columns = array.tolist()
    return rows, columns
