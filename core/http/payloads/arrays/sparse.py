"""Sparse matrices as scipy.sparse.save_npz stores them, made dense: what the platform's own SDK sends of such a matrix.

    csr, csc   data, indices, indptr: of each row (column) the values, and the columns (rows) that they are in
    coo        data, row, col: of each value its place

Values of one place add up, as in scipy. Shape and indices are a client's word: they are checked before memory is taken.
Source: scipy's `scipy/sparse/_matrix_io.py`; docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np

from core.errors import InvalidRequest
from core.inference.tensors import Array, shape_text

_COMMON = frozenset({"format", "shape", "data"})
_LONGEST_FORMAT = 16
_PLACE = "the sparse matrix"
# Places are counted in so many bytes, in however few they came.
_INDEX_SIZE = 8

Arrays = Mapping[str, Array]
Places = tuple[Array, Array, Array]


def is_sparse(names: Container[str]) -> bool:
    """Whether an archive with arrays of these names is one sparse matrix."""
    return all(name in names for name in _COMMON)


def dense_matrix(arrays: Arrays, itemsize: int, limit: int) -> Array:
    """The matrix of the arrays in such an archive, of the type of its values.

    Raises InvalidRequest, also where it would take more than `limit` bytes; each element counts at least `itemsize`.
    """
    read = _FORMATS.get(_format(arrays["format"]))
    if read is None:
        raise InvalidRequest(
            f"{_PLACE} has a format that is not supported, supported are: {', '.join(_FORMATS)}",
            hint="matrix.tocsr() makes one of these",
        )
    rows, columns = _shape(arrays["shape"])
    data = _one_dimension(arrays, "data")
    if data.dtype.kind not in "biuf":
        raise InvalidRequest(f"{_PLACE}: 'data' must be numbers or booleans, not {data.dtype}")
    size = rows * columns * max(itemsize, data.dtype.itemsize)
    if len(data) * _INDEX_SIZE > limit:
        raise InvalidRequest(f"{_PLACE} has {len(data)} values, at most {limit // _INDEX_SIZE} are allowed")
    if size > limit:
        raise InvalidRequest(
            f"{_PLACE} of shape {shape_text((rows, columns))} is {size} bytes when it is dense, at most {limit} are "
            "allowed. Use --http-max-input-size to increase the limit.",
            hint="send fewer rows at once",
        )
    values, row, column = read(arrays, data, rows, columns)
    dense = np.zeros(rows * columns, data.dtype)
    np.add.at(dense, row * columns + column, values)
    return dense.reshape(rows, columns)


def _csr(arrays: Arrays, data: Array, rows: int, columns: int) -> Places:
    return _compressed(arrays, data, rows, columns)


def _csc(arrays: Arrays, data: Array, rows: int, columns: int) -> Places:
    values, column, row = _compressed(arrays, data, columns, rows)
    return values, row, column


def _coo(arrays: Arrays, data: Array, rows: int, columns: int) -> Places:
    row, column = _one_dimension(arrays, "row"), _one_dimension(arrays, "col")
    if not len(row) == len(column) == len(data):
        raise InvalidRequest(f"{_PLACE}: 'row', 'col' and 'data' must be of one length")
    return data, _indices(row, "row", rows), _indices(column, "col", columns)


_FORMATS: dict[str, Callable[[Arrays, Array, int, int], Places]] = {"csr": _csr, "csc": _csc, "coo": _coo}


def _compressed(arrays: Arrays, data: Array, lines: int, length: int) -> Places:
    """The values, of each its line (a row of csr, a column of csc), and its place in that."""
    ends, places = _one_dimension(arrays, "indptr"), _one_dimension(arrays, "indices")
    if len(places) != len(data):
        raise InvalidRequest(f"{_PLACE}: 'indices' and 'data' must be of one length")
    if len(ends) != lines + 1:
        raise InvalidRequest(f"{_PLACE}: 'indptr' must have {lines + 1} numbers, it has {len(ends)}")
    ends = _indices(ends, "indptr", len(data) + 1)
    counts = np.diff(ends)
    if ends[0] != 0 or (counts < 0).any():
        raise InvalidRequest(f"{_PLACE}: 'indptr' must begin at 0 and never fall")
    # What stands behind the last one is room that scipy had taken.
    used = slice(int(ends[-1]))
    return data[used], np.repeat(np.arange(lines), counts), _indices(places[used], "indices", length)


def _indices(array: Array, name: str, bound: int) -> Array:
    """The whole numbers from 0, below `bound`."""
    if array.dtype.kind not in "iu":
        raise InvalidRequest(f"{_PLACE}: '{name}' must be whole numbers, not {array.dtype}")
    if len(array) and not 0 <= int(array.min()) <= int(array.max()) < bound:
        raise InvalidRequest(f"{_PLACE}: '{name}' has a number that is not from 0 to {bound - 1}")
    return array.astype(np.int64)


def _one_dimension(arrays: Arrays, name: str) -> Array:
    array = arrays.get(name)
    if array is None or array.ndim != 1:
        found = "there is none" if array is None else f"it has {array.ndim}"
        raise InvalidRequest(f"{_PLACE}: '{name}' must be an array of one dimension, {found}")
    return array


def _format(array: Array) -> str:
    if array.ndim or array.dtype.kind not in "SU" or array.dtype.itemsize > _LONGEST_FORMAT:
        return ""
    value: bytes | str = array.item()
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _shape(array: Array) -> tuple[int, int]:
    if array.shape != (2,) or array.dtype.kind not in "iu" or int(array.min()) < 1:
        raise InvalidRequest(f"{_PLACE}: 'shape' must be the numbers of rows and columns, at least one of each")
    rows, columns = array.tolist()
    return rows, columns
