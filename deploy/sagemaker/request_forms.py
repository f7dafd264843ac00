"""One request in the forms that an endpoint accepts: v2 JSON, binary tensors, instances, CSV."""

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

from core.inference.tensors import BY_NAME, BYTES, pack_bytes
from deploy.sagemaker.errors import BadSettings

JSON_TYPE = "application/json"
CSV_TYPE = "text/csv"
BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json"
HEADER_SIZE = "json-header-size="


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
        """Read a file with v2 JSON. Raises BadSettings."""
        try:
            document = json.loads(path.read_bytes())
            inputs = [_input(each) for each in document["inputs"]]
        except OSError as error:
            raise BadSettings(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise BadSettings(
                f"{path} is not a v2 request: {type(error).__name__}: {error}",
                hint='{"inputs": [{"name": …, "datatype": …, "shape": […], "data": […]}]}, like deploy/digits/6.json',
            ) from None
        if not inputs:
            raise BadSettings(f"{path} has no inputs")
        return cls(inputs)

    @property
    def item_count(self) -> int:
        return self.inputs[0].shape[0]

    def body(self, form: Form) -> Body:
        return _BODIES[form](self.inputs)


def _input(given: dict[str, Any]) -> Input:
    found = Input(given["name"], given["datatype"], tuple(given["shape"]), _flat(given["data"]))
    if found.datatype not in BY_NAME or found.datatype == "BF16":
        raise ValueError(f"the datatype of {found.name} is {found.datatype}")
    if not found.shape or math.prod(found.shape) != len(found.elements):
        raise ValueError(f"{found.name} has {len(found.elements)} elements for the shape {list(found.shape)}")
    return found


def _flat(value: Any) -> list[Any]:
    return [element for each in value for element in _flat(each)] if isinstance(value, list) else [value]


def _v2(inputs: list[Input]) -> Body:
    described = [{**_described(each), "data": each.elements} for each in inputs]
    return Body(_json({"inputs": described}), JSON_TYPE, JSON_TYPE)


def _binary(inputs: list[Input]) -> Body:
    tensors = [each.wire() for each in inputs]
    described = [
        {**_described(each), "parameters": {"binary_data_size": len(tensor)}}
        for each, tensor in zip(inputs, tensors, strict=True)
    ]
    head = _json({"inputs": described, "parameters": {"binary_data_output": True}})
    return Body(head + b"".join(tensors), f"{BINARY_TYPE};{HEADER_SIZE}{len(head)}", BINARY_TYPE)


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


_BODIES = {Form.V2: _v2, Form.BINARY: _binary, Form.INSTANCES: _instances, Form.CSV: _csv}
