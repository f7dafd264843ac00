"""The request of a smoke test, from a file with v2 JSON, in the forms that platforms take, and the answers to it as
comparable rows."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from trident.core.inference.tensors import BY_NAME, BYTES, pack_bytes, unpack_bytes

JSON_TYPE = "application/json"
CSV_TYPE = "text/csv"
HEADER_SIZE = "json-header-size="


class BadFile(Exception):
    """A file has no request; the argument says why."""


class WrongAnswer(Exception):
    """An answer is malformed, or disagrees with another; the argument says how."""


class Form(StrEnum):
    V2 = "v2"
    BINARY = "binary"
    INSTANCES = "instances"
    CSV = "csv"


@dataclass(frozen=True)
class Input:
    """An input of `shape` with its elements in row-major order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: list[Any]

    def rows(self) -> list[Any]:
        """The items along the first dimension, as nested lists."""
        nested: list[Any] = self.elements
        for size in reversed(self.shape[1:]):
            nested = [nested[at : at + size] for at in range(0, len(nested), size)]
        return nested

    def wire(self) -> bytes:
        """The elements as binary tensor data."""
        if self.datatype == BYTES.name:
            return bytes(pack_bytes([str(element).encode() for element in self.elements]))
        return np.array(self.elements, BY_NAME[self.datatype].dtype).tobytes()


@dataclass(frozen=True)
class Body:
    """A body to send, its content type, and the content type to request for the response."""

    content: bytes
    content_type: str
    accept: str


class Request:
    """The inputs of a v2 request; its outputs and parameters are ignored."""

    def __init__(self, inputs: list[Input]) -> None:
        self.inputs = inputs

    @classmethod
    def read(cls, path: Path) -> Request:
        """Read a file with v2 JSON. Raises BadFile."""
        try:
            document = json.loads(path.read_bytes())
            inputs = [_input(each) for each in document["inputs"]]
        except OSError as error:
            raise BadFile(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise BadFile(
                f"{path} is not a v2 request: {type(error).__name__}: {error}; it takes "
                '{"inputs": [{"name": …, "datatype": …, "shape": […], "data": […]}]}, like deploy/digits/6.json'
            ) from None
        if not inputs:
            raise BadFile(f"{path} has no inputs")
        return cls(inputs)

    @property
    def item_count(self) -> int:
        return self.inputs[0].shape[0]

    def body(self, form: Form, binary_type: str) -> Body:
        """`binary_type` is the platform's media type of binary tensors."""
        return _binary(self.inputs, binary_type) if form is Form.BINARY else _BODIES[form](self.inputs)


def _input(given: dict[str, Any]) -> Input:
    found = Input(given["name"], given["datatype"], tuple(given["shape"]), _flat(given["data"]))
    if found.datatype not in BY_NAME or found.datatype == "BF16":
        raise ValueError(f"the datatype of {found.name} is {found.datatype}")
    if not found.shape or math.prod(found.shape) != len(found.elements):
        raise ValueError(f"{found.name} has {len(found.elements)} elements for the shape {list(found.shape)}")
    found.wire()  # raises for an element of another type
    return found


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [element for each in value for element in _flat(each)] if isinstance(value, list) else [value]


def _v2(inputs: list[Input]) -> Body:
    described = [{**_described(each), "data": each.elements} for each in inputs]
    return Body(_json({"inputs": described}), JSON_TYPE, JSON_TYPE)


def _binary(inputs: list[Input], media_type: str) -> Body:
    tensors = [each.wire() for each in inputs]
    described = [
        {**_described(each), "parameters": {"binary_data_size": len(tensor)}}
        for each, tensor in zip(inputs, tensors, strict=True)
    ]
    head = _json({"inputs": described, "parameters": {"binary_data_output": True}})
    return Body(head + b"".join(tensors), f"{media_type};{HEADER_SIZE}{len(head)}", media_type)


def _instances(inputs: list[Input]) -> Body:
    if len(inputs) == 1:
        rows = inputs[0].rows()
    else:
        names = [each.name for each in inputs]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(each.rows() for each in inputs), strict=True)]
    return Body(_json({"instances": rows}), JSON_TYPE, JSON_TYPE)


def _csv(inputs: list[Input]) -> Body:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in zip(*(each.rows() for each in inputs), strict=True):
        writer.writerow([element for part in row for element in _flat(part)])
    return Body(text.getvalue().encode(), CSV_TYPE, CSV_TYPE)


def _described(each: Input) -> dict[str, Any]:
    return {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


_BODIES = {Form.V2: _v2, Form.INSTANCES: _instances, Form.CSV: _csv}


# Text has fewer digits than FP32, and machines add in different orders.
_RELATIVE = 1e-3
_ABSOLUTE = 1e-4

Rows = list[list[Any]]


class Agreement:
    """Compares the answers to `count` items in all forms with the first answer."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._first: Rows | None = None

    def check(self, form: Form, content: bytes, content_type: str) -> str:
        """The size of an answer, as text. Raises WrongAnswer."""
        rows = read_rows(form, content, content_type)
        if self._first is None:
            self._first = rows
        if problem := difference(rows, self._first):
            raise WrongAnswer(f"{form}: {problem}")
        if len(rows) != self._count:
            raise WrongAnswer(f"{form}: {len(rows)} rows, but the request has {self._count}")
        return f"{len(rows)} rows of {len(rows[0])} values"


def read_rows(form: Form, content: bytes, content_type: str) -> Rows:
    """The rows of a response, each with the values of all outputs. Raises WrongAnswer for a malformed response."""
    try:
        return _READERS[form](content, content_type)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongAnswer(
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


def _read_v2(content: bytes, _type: str) -> Rows:
    outputs = json.loads(content)["outputs"]
    return _side_by_side([(output["shape"], _flat(output["data"])) for output in outputs])


def _read_binary(content: bytes, content_type: str) -> Rows:
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


def _read_instances(content: bytes, _type: str) -> Rows:
    return [_flat(prediction) for prediction in json.loads(content)["predictions"]]


def _read_csv(content: bytes, content_type: str) -> Rows:
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


_READERS = {Form.V2: _read_v2, Form.BINARY: _read_binary, Form.INSTANCES: _read_instances, Form.CSV: _read_csv}
