"""Decodes CSV: a row is an instance, and its columns are the elements in row-major order.

Several inputs follow each other in the order of the model configuration. There is no header row. Plain numbers are
parsed by the JSON parser, whose grammar they share (1,000 rows of 30: a third of the time of numpy's own reader). Any
other text is read field by field with `csv`.
Source: RFC 4180; docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from trident.core.config.golden import shown
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.json import json_value, parse_number_array, wide_kind, write_json
from trident.core.http.payloads.payload import (
    CsvErrorLocation,
    DecodedPayload,
    DecodeRules,
    InstanceSignature,
    OutputColumn,
    as_datatype,
    csv_row_name,
    expected_text,
    instance_signature,
    mismatch,
    row_layout,
    wide_integers,
)
from trident.core.inference.tensors import BYTES, Array, Buffer, Datatype, Shape, bytes_array

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EMPTY = re.compile(rb"\n\r?\n").search
_NO_ROWS = "the CSV has no rows: expected at least one"
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
# From this number on a double cannot represent every integer.
_EXACT = 2.0**53

_Row = list[str]


def decode_csv(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Lines end with LF or CRLF, optional on the last. Empty lines are passed over and not counted.

    Raises InvalidRequest that names row and column, from 1.
    """
    start = len(_BYTE_ORDER_MARK) if bytes(body[:3]) == _BYTE_ORDER_MARK else 0
    if len(body) == start:
        raise InvalidRequest(_NO_ROWS)
    signature = instance_signature(spec, None)
    text = bytes(body[start:])
    # Empty lines are skipped, unless one may be a part of a quoted field: `csv` tells. One with blanks is a row, for a
    # model with one column of strings.
    if b'"' not in text and (_EMPTY(text) or text[:1] in (b"\n", b"\r")):
        text = b"\n".join([line for line in text.split(b"\n") if line not in (b"", b"\r")])
    arrays = _from_numbers(text, signature)
    if arrays is None:
        arrays = _from_fields(text, signature)
    count = len(next(iter(arrays.values())))
    return DecodedPayload(arrays=arrays, count=count, stacked=signature.stacked)


def _from_numbers(text: bytes, signature: InstanceSignature) -> dict[str, Array] | None:
    """The arrays of rows of plain numbers with the same length; None for any other text."""
    kinds = {wide_kind(i.datatype) for i in signature.inputs.values()}
    # The parser would take a bracket for a list; it refuses quotes and words itself.
    if None in kinds or b"[" in text:
        return None
    kind = next(iter(kinds)) if len(kinds) == 1 else "f"
    if b"\r\n" in text:
        text = text.replace(b"\r\n", b"\n")
    text = text.removesuffix(b"\n")
    if not text or text.isspace():
        return None
    # The parser refuses NaN, the most frequent reason for a refusal; no number has its letter `a`.
    found = (
        parse_number_array(b"[[" + text.replace(b"\n", b"],[") + b"]]", None, kind or "f") if b"a" not in text else None
    )
    matrix = found[0] if found else None
    if matrix is not None and kind == "f" and not matrix.all() and text.count(b"-0") > text.count(b"-0."):
        matrix = None  # -0, perhaps, which is the integer 0 for the parser
    if matrix is None and kinds == {"f"}:
        matrix = _loaded(text)
    if matrix is None:
        return None
    if kind == "f" and kinds != {"f"} and not np.abs(matrix).max() < _EXACT:
        return None
    return {
        block.spec.name: as_datatype(
            np.ascontiguousarray(matrix[:, block.columns]).reshape(-1, *block.dims),
            block.spec.datatype,
            CsvErrorLocation(block.spec.name, block.columns.start),
        )
        for block in row_layout(signature, matrix.shape[1], csv_row_name(0))
    }


def _loaded(text: bytes) -> Array | None:
    """The rows as numpy's own reader reads them, with NaN and numbers such as `.5`; None if it refuses them.

    It skips blank lines and reads 1e999 as infinity. Both give None here, so that the slow path refuses them.
    """
    if b'"' in text:
        return None
    try:
        matrix = np.loadtxt(io.BytesIO(text), np.float64, comments=None, delimiter=",", ndmin=2)
    except ValueError:
        return None
    return matrix if len(matrix) == text.count(b"\n") + 1 and not np.isinf(matrix).any() else None


def _from_fields(text: bytes, signature: InstanceSignature) -> dict[str, Array]:
    # Decoding as Latin-1 keeps each byte, whatever the encoding of the text is.
    lines = csv.reader(io.StringIO(text.decode("latin-1"), newline=""), strict=True)
    rows: list[_Row] = []
    try:
        for row in lines:
            if row:
                rows.append(row)
    except csv.Error as error:
        raise InvalidRequest(f"{csv_row_name(len(rows))}: {error}") from None
    if not rows:
        raise InvalidRequest(_NO_ROWS)
    columns = len(rows[0])
    blocks = row_layout(signature, columns, csv_row_name(0))
    if set(map(len, rows)) != {columns}:
        index = next(i for i, row in enumerate(rows) if len(row) != columns)
        raise mismatch(csv_row_name(index), f"{columns} columns, as row 1 has", str(len(rows[index])))
    arrays: dict[str, Array] = {}
    for block in blocks:
        fields = list(chain.from_iterable([row[block.columns] for row in rows]))
        location = CsvErrorLocation(block.spec.name, block.columns.start)
        arrays[block.spec.name] = _array(fields, (len(rows), *block.dims), block.spec.datatype, location)
    return arrays


def _array(fields: list[str], shape: Shape, datatype: Datatype, location: CsvErrorLocation) -> Array:
    """The array of the fields of one input in all rows, in row-major order."""

    def wrong(index: int) -> InvalidRequest:
        width = len(fields) // shape[0]
        got = fields[index].encode("latin-1").decode("utf-8", "replace")
        error = mismatch(location.element(index, shape), expected_text(datatype), shown(got))
        if index < width and not any(_can(_double, field) for field in fields[:width]):
            hint = "send the rows alone"
            return InvalidRequest(f"{error.message}; row 1 looks like a header, which CSV must not have", hint=hint)
        return error

    def each(read: Callable[[str], Any]) -> list[Any]:
        try:
            return list(map(read, fields))
        except (ValueError, KeyError):
            pass
        raise wrong(next(i for i, field in enumerate(fields) if not _can(read, field)))

    if datatype is BYTES:
        return bytes_array([field.encode("latin-1") for field in fields], shape)
    if datatype.kind == "b":
        return np.array(each(lambda field: _BOOLS[field.strip().lower()]), np.bool_).reshape(shape)
    if wide_kind(datatype) == "f":
        # Python's `int` and `float` accept underscores between digits, which are not numbers in CSV.
        doubles = np.array(each(_double if "_" in "".join(fields) else float), np.float64)
        for index in np.flatnonzero(np.isinf(doubles)).tolist():
            if "n" not in fields[index].lower():  # digits of a number that is too large for a double
                raise wrong(index)
        return as_datatype(doubles.reshape(shape), datatype, location)
    integers = each(_integer)
    wide = wide_integers(integers)
    if wide is None:
        limits = np.iinfo(datatype.dtype)
        raise wrong(next(i for i, n in enumerate(integers) if not limits.min <= n <= limits.max))
    return as_datatype(wide.reshape(shape), datatype, location)


def _double(field: str) -> float:
    if "_" in field:
        raise ValueError(field)
    return float(field)


def _integer(field: str) -> int:
    """A number with a fraction or an exponent may be whole; from 2^53 on a double has perhaps rounded it."""
    try:
        if "_" not in field:
            return int(field)
    except ValueError:
        pass
    value = _double(field)
    if not value.is_integer() or abs(value) >= _EXACT:
        raise ValueError(field)
    return int(value)


def _can(read: Callable[[str], Any], field: str) -> bool:
    try:
        read(field)
    except (ValueError, KeyError):
        return False
    return True


# Numbers are written by the JSON encoder with the fewest digits that read back as the same number; NaN and the
# infinities are words. Source: RFC 4180; docs/spec/sagemaker.md section C "Content types".


_NEEDS_QUOTES = re.compile(rb'[,"\r\n]|\A\Z|\A\s|\s\Z')


def encode_csv(columns: list[OutputColumn]) -> bytes:
    """Encode the outputs. Raises InvalidRequest if whole tensors have different numbers of rows."""
    lines = [
        [line for part in column.parts for line in _lines(np.atleast_1d(part), column.datatype)] for column in columns
    ]
    if len({len(own) for own in lines}) > 1:
        raise InvalidRequest(
            "the outputs have different numbers of rows, which CSV cannot hold", hint="ask for application/json"
        )
    rows = lines[0] if len(lines) == 1 else list(map(b",".join, zip(*lines, strict=True)))
    return b"\n".join([*rows, b""])


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
