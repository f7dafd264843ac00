"""Encodes outputs as JSON predictions: a value per instance, or an object of values by output name.

Numbers have the fewest digits that read back as the same number. NaN and the infinities, which JSON does not have, are
the strings "NaN", "Infinity" and "-Infinity". Bytes that are not UTF-8 are `{"b64": "..."}`.
Source: docs/spec/vertex.md section D point 5.
"""

from __future__ import annotations

import binascii
from itertools import chain
from typing import Any

import numpy as np
import orjson

from core.http.payloads.json.document_form import DocumentForm
from core.http.payloads.output_columns import OutputColumn, row_slices
from core.inference.tensors import BYTES, Array, Datatype

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def encode_predictions(columns: list[OutputColumn]) -> list[bytes]:
    """Encode as `{"predictions": [...]}`, one value per instance, in order."""
    return _rows_text(columns, b'{"predictions":[', b"]}")


def encode_json(columns: list[OutputColumn], form: DocumentForm | None = None) -> list[bytes]:
    """Encode the answer to a document of `form`: predictions, a bare array, or TensorFlow Serving's outputs."""
    if form is DocumentForm.BARE:
        return _rows_text(columns, b"[", b"]")
    if form is DocumentForm.COLUMNS:
        tensors = {column.name: _tensor(column) for column in columns}
        return [write_json({"outputs": tensors if len(tensors) > 1 else next(iter(tensors.values()))})]
    return encode_predictions(columns)


def prediction_rows(columns: list[OutputColumn]) -> list[Any]:
    """The value of each instance. Whole tensors are split along their first dimension if all agree in it."""
    if columns[0].whole:
        arrays = [column.parts[0] for column in columns]
        if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
            arrays = [array[np.newaxis] for array in arrays]
        parts = [[array] for array in arrays]
    else:
        parts = [column.parts for column in columns]
    rows = [
        list(chain.from_iterable(json_value(part, column.datatype) for part in own))
        for column, own in zip(columns, parts, strict=True)
    ]
    if len(columns) == 1:
        return rows[0]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*rows, strict=True)]


def json_value(array: Array, datatype: Datatype) -> Any:
    """The array as the JSON writer takes it: itself, or nested lists if the writer would write it wrong."""
    if datatype is BYTES:
        flat = np.empty(array.size, dtype=object)
        flat[:] = [_text(element) for element in array.reshape(-1).tolist()]
        return flat.reshape(array.shape).tolist()
    if array.dtype.kind != "f":
        return array
    finite = np.isfinite(array)
    if finite.all():
        return array
    # FP16 and FP32 keep their own shortest digits: `tolist` would convert them to doubles, and 0.1 would not stay 0.1.
    values = array.astype(object) if array.dtype.itemsize == 8 else _shortest(array)
    for name in _NOT_FINITE:
        number = float(name)
        values[np.isnan(array) if name == "NaN" else array == number] = name
    return values.tolist()


def write_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _rows_text(columns: list[OutputColumn], start: bytes, end: bytes) -> list[bytes]:
    """The predictions between `start` and `end`, in parts, so that no step holds the interpreter for long."""
    parts: list[bytes] = []
    for part in row_slices(columns):
        parts += (b"," if parts else start, write_json(_predictions(part))[1:-1])
    return [b"".join((*parts, end))] if len(parts) == 2 else [*parts, end]


def _predictions(columns: list[OutputColumn]) -> Any:
    """The rows, as one array if possible, which is written faster."""
    if len(columns) == 1 and len(columns[0].parts) == 1 and columns[0].parts[0].ndim:
        return json_value(columns[0].parts[0], columns[0].datatype)
    return prediction_rows(columns)


def _tensor(column: OutputColumn) -> Any:
    value = json_value(column.parts[0], column.datatype) if len(column.parts) == 1 else prediction_rows([column])
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _shortest(array: Array) -> Array:
    values = np.empty(array.size, dtype=object)
    values[:] = list(array.reshape(-1))
    return values.reshape(array.shape)


def _text(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": binascii.b2a_base64(element, newline=False).decode()}
