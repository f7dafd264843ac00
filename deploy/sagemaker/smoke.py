"""The smoke test: one request in every form; all responses must agree."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from deploy.sagemaker.execute import Printer, call_failed, error_of
from deploy.sagemaker.plan import BadSettings, Call, Kind, SmokeFailed
from trident.core.inference.tensors import BY_NAME, BYTES, pack_bytes, unpack_bytes

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
    if isinstance(value, dict):
        value = list(value.values())
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


_POLL_S = 2.0
# Without BINARY: its reader needs the content type of the response, and a queued call only leaves an object in S3.
_QUEUED_FORMS = (Form.V2, Form.INSTANCES, Form.CSV)
_MISSING = ("NoSuchKey", "404", "AccessDenied")


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """A smoke test. `target_model` is the key of a multi-model endpoint's archive; `limit_s` limits queued calls."""

    endpoint: str
    kind: Kind
    request: Request
    forms: Sequence[Form] = tuple(Form)
    target_model: str = ""
    limit_s: float = 300.0

    @classmethod
    def of(cls, given: Namespace) -> Smoke:
        """The smoke test that a command line asks for. Raises BadSettings."""
        return cls(
            endpoint=given.name,
            kind=given.kind,
            request=Request.read(given.request),
            forms=given.form or (_QUEUED_FORMS if given.kind is Kind.ASYNC else tuple(Form)),
            target_model=given.target_model,
            limit_s=given.wait_secs,
        )

    def plan(self) -> tuple[Call, ...]:
        """A call for each form. Raises BadSettings."""
        if (self.kind is Kind.MULTI_MODEL) != bool(self.target_model):
            raise BadSettings("--target-model belongs to --kind multi-model", hint="the archive's key below the prefix")
        return tuple(self._call(form) for form in self.forms)

    def _call(self, form: Form) -> Call:
        body = self.request.body(form)
        parameters: dict[str, Any] = {
            "EndpointName": self.endpoint,
            "ContentType": body.content_type,
            "Accept": body.accept,
            "Body": body.content,
        }
        if self.target_model:
            parameters["TargetModel"] = self.target_model
        operation = "InvokeEndpointAsync" if self.kind is Kind.ASYNC else "InvokeEndpoint"
        return Call(service="sagemaker-runtime", operation=operation, parameters=parameters)


class SmokeRun:
    """Makes the calls of a smoke test. `pause` and `clock` use seconds, for queued responses."""

    def __init__(
        self,
        client_of: Callable[[str], Any],
        printer: Printer,
        *,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_of = client_of
        self._printer = printer
        self._pause = pause
        self._clock = clock

    def run(self, smoke: Smoke) -> None:
        """Raises SmokeFailed for a malformed response or one that differs from the first form's, CallFailed."""
        expected: Rows | None = None
        for form, call in zip(smoke.forms, smoke.plan(), strict=True):
            started = self._clock()
            content, content_type = self._answer(call, smoke)
            rows = read_rows(form, content, content_type)
            if expected is None:
                expected = rows
            problem = difference(rows, expected)
            if not problem and len(rows) != smoke.request.item_count:
                problem = f"{len(rows)} rows, but the request has {smoke.request.item_count}"
            if problem:
                raise SmokeFailed(f"{form}: {problem}", hint=f"the first response was in the form {smoke.forms[0]}")
            took = (self._clock() - started) * 1000
            self._printer.line(f"{form}: {len(rows)} rows of {len(rows[0])} values, {took:.0f} ms")

    def _answer(self, call: Call, smoke: Smoke) -> tuple[bytes, str]:
        """The body and the content type of the response."""
        client = self._client_of(call.service)
        try:
            answer = getattr(client, xform_name(call.operation))(**call.parameters)
        except (ClientError, BotoCoreError) as error:
            raise call_failed(call, error) from error
        if smoke.kind is Kind.ASYNC:
            content, stored_type = self._queued_answer(answer, smoke.limit_s)
            # The object's content type is undocumented; only the binary type carries additional information.
            return content, stored_type if HEADER_SIZE in stored_type else call.parameters["Accept"]
        return answer["Body"].read(), answer["ContentType"]

    def _queued_answer(self, answer: dict[str, Any], limit_s: float) -> tuple[bytes, str]:
        """Wait for the object that the endpoint writes to S3. Without permission to list, a missing one is refused."""
        deadline = self._clock() + limit_s
        while True:
            found = self._object(answer["OutputLocation"])
            if found is not None:
                return found
            failure = self._object(answer["FailureLocation"]) if answer.get("FailureLocation") else None
            if failure is not None:
                raise SmokeFailed(f"the endpoint wrote a failure: {failure[0].decode(errors='replace')[:2000]}")
            if self._clock() >= deadline:
                raise SmokeFailed(
                    f"no response at {answer['OutputLocation']} after {limit_s:g} s",
                    hint="an endpoint without instances needs some minutes; use --wait-secs to wait longer",
                )
            self._pause(_POLL_S)

    def _object(self, location: str) -> tuple[bytes, str] | None:
        bucket, _, key = location.removeprefix("s3://").partition("/")
        call = Call(service="s3", operation="GetObject", parameters={"Bucket": bucket, "Key": key})
        try:
            found = self._client_of("s3").get_object(**call.parameters)
        except ClientError as error:
            if error_of(error)[0] in _MISSING:
                return None
            raise call_failed(call, error) from error
        except BotoCoreError as error:
            raise call_failed(call, error) from error
        return found["Body"].read(), found["ContentType"]
