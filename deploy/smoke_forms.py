"""The request of a smoke test, from a file with v2 JSON, in the forms that platforms take, and the answers to it as
comparable rows."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from trident.core.inference.tensors import BY_NAME, BYTES, pack_bytes, unpack_bytes

JSON_TYPE = "application/json"
CSV_TYPE = "text/csv"
HEADER_SIZE = "json-header-size="
Rows = list[list[Any]]


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
class Body:
    """A body to send, its content type, and the content type to request for the response."""

    content: bytes
    content_type: str
    accept: str


@dataclass(frozen=True)
class Input:
    """An input, whose array has the file's own numbers and texts."""

    name: str
    datatype: str
    array: np.ndarray

    @classmethod
    def of(cls, given: dict[str, Any]) -> Input:
        found = cls(given["name"], given["datatype"], np.array(_flat(given["data"]), object).reshape(given["shape"]))
        if found.datatype not in BY_NAME or found.datatype == "BF16" or not found.array.shape:
            raise ValueError(f"the datatype of {found.name} is {found.datatype}, its shape {found.array.shape}")
        found.wire()  # raises for an element of another type
        return found

    def described(self, **more: Any) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.array.shape), **more}

    def wire(self) -> bytes:
        """The elements as binary tensor data."""
        if self.datatype == BYTES.name:
            return bytes(pack_bytes([str(element).encode() for element in self.array.ravel()]))
        return self.array.astype(BY_NAME[self.datatype].dtype).tobytes()


class Request:
    """The inputs of a v2 request; its outputs and parameters are ignored."""

    def __init__(self, inputs: list[Input]) -> None:
        self.inputs = inputs
        self.item_count = len(inputs[0].array)

    @classmethod
    def read(cls, path: Path) -> Request:
        """Read a file with v2 JSON. Raises BadFile."""
        try:
            return cls([Input.of(each) for each in json.loads(path.read_bytes())["inputs"]])
        except OSError as error:
            raise BadFile(f"{path}: {error.strerror}") from None
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise BadFile(
                f"{path} is not a v2 request: {type(error).__name__}: {error}; it takes "
                '{"inputs": [{"name": …, "datatype": …, "shape": […], "data": […]}]}, like deploy/digits/6.json'
            ) from None

    def body(self, form: Form, binary_type: str) -> Body:
        """`binary_type` is the platform's media type of binary tensors."""
        if form is Form.V2:
            described = [each.described(data=each.array.ravel().tolist()) for each in self.inputs]
            return Body(_json({"inputs": described}), JSON_TYPE, JSON_TYPE)
        if form is Form.BINARY:
            tensors = [each.wire() for each in self.inputs]
            described = [
                each.described(parameters={"binary_data_size": len(tensor)})
                for each, tensor in zip(self.inputs, tensors, strict=True)
            ]
            head = _json({"inputs": described, "parameters": {"binary_data_output": True}})
            return Body(head + b"".join(tensors), f"{binary_type};{HEADER_SIZE}{len(head)}", binary_type)
        rows = list(zip(*(each.array.tolist() for each in self.inputs), strict=True))
        if form is Form.INSTANCES:
            names = [each.name for each in self.inputs]
            instances = [row[0] if len(row) == 1 else dict(zip(names, row, strict=True)) for row in rows]
            return Body(_json({"instances": instances}), JSON_TYPE, JSON_TYPE)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(_flat(list(row)) for row in rows)
        return Body(text.getvalue().encode(), CSV_TYPE, CSV_TYPE)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [element for each in value for element in _flat(each)] if isinstance(value, list) else [value]


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


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
        if form is Form.INSTANCES:
            return [_flat(prediction) for prediction in json.loads(content)["predictions"]]
        if form is Form.CSV:
            if not content_type.startswith(CSV_TYPE):
                raise ValueError("the content type is not CSV")
            return list(csv.reader(content.decode().splitlines()))
        size = int(content_type.partition(HEADER_SIZE)[2]) if form is Form.BINARY else len(content)
        columns = []
        for output in json.loads(content[:size])["outputs"]:
            if form is Form.BINARY:
                end = size + output["parameters"]["binary_data_size"]
                elements, size = _elements(output, content[size:end]), end
            else:
                elements = _flat(output["data"])
            columns.append(np.array(elements, object).reshape(output["shape"][0], -1))
        rows: Rows = np.concatenate(columns, axis=1).tolist()
        return rows
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WrongAnswer(
            f"{form}: the answer cannot be read ({type(error).__name__}: {error}): {content_type}, {content[:200]!r}"
        ) from None


def _elements(output: dict[str, Any], data: bytes) -> list[Any]:
    count = math.prod(output["shape"])
    if output["datatype"] == BYTES.name:
        return [element.decode() for element in unpack_bytes(data, count, name=output["name"], model="")]
    found: list[Any] = np.frombuffer(data, BY_NAME[output["datatype"]].dtype, count).tolist()
    return found


def difference(found: Rows, expected: Rows) -> str:
    """The first difference between two responses; "" without one."""
    if len(found) != len(expected):
        return f"{len(found)} rows, not {len(expected)}"
    for number, (row, other) in enumerate(zip(found, expected, strict=True), 1):
        for column, (value, wanted) in enumerate(zip_longest(row, other), 1):
            if not _alike(value, wanted):
                return f"row {number}, column {column} is {value}, not {wanted}"
    return ""


def _alike(value: Any, wanted: Any) -> bool:
    """True if values are equal, or nearly: text has fewer digits than FP32, and machines add in different orders."""
    first, second = _number(value), _number(wanted)
    if first is None or second is None:
        return str(value) == str(wanted)
    return math.isclose(first, second, rel_tol=1e-3, abs_tol=1e-4) or (math.isnan(first) and math.isnan(second))


def _number(value: Any) -> float | None:
    """The number that a value or its text in CSV stands for; None for other texts."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return float(value.lower() == "true")
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
