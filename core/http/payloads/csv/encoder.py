"""Encodes outputs as CSV: one row per instance, the elements of each output in row-major order, without a header.

Numbers are written by the JSON encoder with the fewest digits that read back as the same number; NaN and the
infinities are words.
Source: RFC 4180; docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

import re

import numpy as np

from core.errors import InvalidRequest
from core.http.payloads.json.encoder import json_value, write_json
from core.http.payloads.output_columns import OutputColumn, row_slices
from core.inference.tensors import BYTES, Array, Datatype

_NEEDS_QUOTES = re.compile(rb'[,"\r\n]|\A\Z|\A\s|\s\Z')


def encode_csv(columns: list[OutputColumn]) -> list[bytes]:
    """Encode the outputs. Raises InvalidRequest if whole tensors have different numbers of rows."""
    return [_rows(part) for part in row_slices(columns)]


def _rows(columns: list[OutputColumn]) -> bytes:
    lines = [_column_lines(column) for column in columns]
    if len({len(own) for own in lines}) > 1:
        raise InvalidRequest(
            "the outputs have different numbers of rows, which CSV cannot hold", hint="ask for application/json"
        )
    rows = lines[0] if len(lines) == 1 else list(map(b",".join, zip(*lines, strict=True)))
    return b"\n".join([*rows, b""])


def _column_lines(column: OutputColumn) -> list[bytes]:
    return [line for part in column.parts for line in _lines(np.atleast_1d(part), column.datatype)]


def _lines(array: Array, datatype: Datatype) -> list[bytes]:
    if not len(array):
        return []
    matrix = array.reshape(len(array), -1)
    if datatype is BYTES:
        return [b",".join(map(_field, row)) for row in matrix.tolist()]
    # The text is [[1,2],[3,4]], and numbers have no brackets, so the brackets are the ends of rows.
    text = write_json(json_value(matrix, datatype))
    return text[2:-2].replace(b'"', b"").split(b"],[")


def _field(element: bytes) -> bytes:
    if _NEEDS_QUOTES.search(element):
        return b'"' + element.replace(b'"', b'""') + b'"'
    return element
