"""The responses of an endpoint in any form, as comparable rows: one for each item of the request."""

from __future__ import annotations

import csv
import json
import math
from typing import Any

import numpy as np

from core.inference.tensors import BY_NAME, BYTES, unpack_bytes
from deploy.sagemaker.errors import SmokeFailed
from deploy.sagemaker.request_forms import HEADER_SIZE, Form

# Text has fewer digits than FP32, and machines add in different orders.
_RELATIVE = 1e-3
_ABSOLUTE = 1e-4

Rows = list[list[Any]]


def read_rows(form: Form, content: bytes, content_type: str) -> Rows:
    """The rows of a response, each with the values of all outputs. Raises SmokeFailed for a malformed response."""
    try:
        return _READERS[form](content, content_type)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SmokeFailed(
            f"{form}: the answer cannot be read ({type(error).__name__}: {error}): {content_type}, {content[:200]!r}"
        ) from None


def difference(found: Rows, expected: Rows) -> str:
    """The first difference between two responses; "" without one."""
    if len(found) != len(expected):
        return f"{len(found)} rows, not {len(expected)}"
    for number, (row, other) in enumerate(zip(found, expected, strict=True), 1):
        if len(row) != len(other):
            return f"row {number} has {len(row)} values, not {len(other)}"
        for column, (value, wanted) in enumerate(zip(row, other, strict=True), 1):
            if not _alike(value, wanted):
                return f"row {number}, column {column} is {value}, not {wanted}"
    return ""


def _v2(content: bytes, _type: str) -> Rows:
    outputs = json.loads(content)["outputs"]
    return _side_by_side([(output["shape"], _flat(output["data"])) for output in outputs])


def _binary(content: bytes, content_type: str) -> Rows:
    size = int(content_type.partition(HEADER_SIZE)[2])
    outputs, at = [], size
    for output in json.loads(content[:size])["outputs"]:
        end = at + output["parameters"]["binary_data_size"]
        outputs.append((output["shape"], _elements(output, content[at:end])))
        at = end
    return _side_by_side(outputs)


def _elements(output: dict[str, Any], data: bytes) -> list[Any]:
    name, datatype, count = output["name"], output["datatype"], math.prod(output["shape"])
    if datatype == BYTES.name:
        return [element.decode() for element in unpack_bytes(data, count, name=name, model="")]
    found: list[Any] = np.frombuffer(data, BY_NAME[datatype].dtype, count).tolist()
    return found


def _instances(content: bytes, _type: str) -> Rows:
    return [_flat(prediction) for prediction in json.loads(content)["predictions"]]


def _csv(content: bytes, content_type: str) -> Rows:
    if not content_type.startswith("text/csv"):
        raise ValueError("the content type is not CSV")
    return list(csv.reader(content.decode().splitlines()))


def _side_by_side(outputs: list[tuple[list[int], list[Any]]]) -> Rows:
    counts = {shape[0] for shape, _ in outputs}
    if len(counts) != 1:
        raise ValueError(f"the outputs have {sorted(counts)} rows")
    rows: Rows = [[] for _ in range(counts.pop())]
    for shape, elements in outputs:
        width = math.prod(shape[1:])
        for number, row in enumerate(rows):
            row.extend(elements[number * width : (number + 1) * width])
    return rows


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [element for each in value for element in _flat(each)] if isinstance(value, list) else [value]


def _alike(value: Any, wanted: Any) -> bool:
    first, second = _number(value), _number(wanted)
    if first is None or second is None:
        return str(value) == str(wanted)
    return math.isclose(first, second, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE) or (first != first and second != second)


def _number(value: Any) -> float | None:
    """The number that a value or its text in CSV stands for; None for other texts."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return float(value.lower() == "true")
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


_READERS = {Form.V2: _v2, Form.BINARY: _binary, Form.INSTANCES: _instances, Form.CSV: _csv}
