"""Reads the golden requests of a model: JSON files in the folder `golden/` of the model directory.

They are Trident's own, not Triton's. docs/golden-requests.md describes them for their authors. `read_json` and `Fields`
read other JSON that people write, too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trident.core.config.problem import InvalidModelConfig, Problem, nearest, path_inside, read_file
from trident.core.config.request_check import RequestValidator
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import (
    BY_NAME,
    BYTES,
    MAX_ELEMENTS,
    Array,
    Datatype,
    Shape,
    bytes_array,
    element_count,
    shape_text,
)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference of a value: |value - expected| <= absolute + relative * |expected|."""

    absolute: float = 0.0
    relative: float = 0.0


EXACT = Tolerance()
FLOATING = Tolerance(absolute=1e-5, relative=1e-4)


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """An output that the response must have."""

    tensor: GoldenTensor
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class GoldenRequest:
    """The content of the file `name`. `outputs`: the requested ones, empty for all; `expected`: the compared ones."""

    name: str
    id: str
    inputs: tuple[GoldenTensor, ...]
    outputs: tuple[str, ...]
    expected: tuple[ExpectedOutput, ...]

    def inference_request(self, spec: ModelSpec) -> InferenceRequest:
        inputs = [
            InputTensor(tensor.name, tensor.datatype.name, tensor.array.shape, tensor.array) for tensor in self.inputs
        ]
        return InferenceRequest(
            spec.name, inputs, model_version=spec.version, id=self.id or self.name, outputs=self.outputs
        )


TENSOR_FIELDS = ("name", "datatype", "shape", "data")
# JSON has no numbers for these. JavaScript and Python's `float` read the same strings.
NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

_MOST_DIMENSIONS = 64  # of a numpy array
_LARGEST_ELEMENT = 8  # bytes

_BF16 = BY_NAME["BF16"]
_BF16_NAN = np.uint16(0x7FC0)
_Element = int | float | bool | bytes


@dataclass(frozen=True, slots=True, eq=False)
class GoldenTensor:
    """One tensor of a request or of an expected response, in the client's shape (with the batch dimension).

    `array` is of the datatype's numpy type: bit patterns for BF16, objects for BYTES.
    """

    name: str
    datatype: Datatype
    array: Array


def golden_tensor(fields: Fields, inputs: Collection[str] | None = None) -> GoldenTensor:
    """Return the tensor that `fields` describe, one of `inputs`. They are at least TENSOR_FIELDS. Raises Malformed."""
    name = fields.text("name") if inputs is None else _name(fields, "input", inputs)
    datatype_name = fields.text("datatype")
    datatype = BY_NAME.get(datatype_name)
    if datatype is None:
        message = f"{fields.path_of('datatype')}: expected one of {', '.join(BY_NAME)}, got {shown(datatype_name)}"
        raise Malformed(message, hint=nearest(datatype_name, BY_NAME))
    shape = fields.integers("shape")
    place = fields.path_of("shape")
    if len(shape) > _MOST_DIMENSIONS:
        raise Malformed(f"{place}: expected at most {_MOST_DIMENSIONS} dimensions, got {len(shape)}")
    # A dimension of 0 does not excuse the others: numpy multiplies them all.
    if element_count(dim or 1 for dim in shape) > MAX_ELEMENTS // _LARGEST_ELEMENT:
        raise Malformed(f"{place}: expected fewer elements")
    array = _array(datatype, fields.elements("data"), shape, fields.path_of("data"))
    return GoldenTensor(name, datatype, array.reshape(shape))


def is_floating(datatype: Datatype) -> bool:
    return datatype is _BF16 or datatype.kind == "f"


def as_numbers(array: Array, datatype: Datatype) -> Array:
    """`array` as numbers: the bit patterns of BF16 become FP32 numbers, other arrays stay unchanged."""
    if datatype is not _BF16:
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _array(datatype: Datatype, values: list[object], shape: Shape, path: str) -> Array:
    given = np.array(values, object)
    count = element_count(shape)
    if given.size != count or (given.ndim > 1 and given.shape != shape):
        got = shape_text(given.shape) if given.ndim > 1 else given.size
        raise Malformed(f"{path}: expected {count} elements for shape {shape_text(shape)}, got {got}")

    def refuse(index: int, expected: str) -> Malformed:
        place = "".join(f"[{each}]" for each in np.unravel_index(index, given.shape))
        return Malformed(f"{path}{place}: expected {expected}, got {shown(given.flat[index])}")

    element, expected = _reader(datatype)
    elements: list[Any] = []
    for index, value in enumerate(given.flat):
        read = element(value)
        if read is None:
            raise refuse(index, expected)
        elements.append(read)
    if datatype is BYTES:
        return bytes_array(elements, (count,))
    if not is_floating(datatype):
        return np.array(elements, dtype=datatype.dtype)
    wide = np.array(elements, dtype=np.float64)
    narrow = narrowed(wide, datatype)
    out_of_range = np.flatnonzero(np.isfinite(wide) & ~np.isfinite(as_numbers(narrow, datatype)))
    if out_of_range.size:
        raise refuse(int(out_of_range[0]), f"a number in the range of {datatype.name}")
    return narrow


def _reader(datatype: Datatype) -> tuple[Callable[[object], _Element | None], str]:
    """Return a function that converts one JSON value to the datatype, or returns None, and a name for valid values."""
    if datatype is BYTES:
        return _text, "a string of Unicode text"
    if is_floating(datatype):
        words = ", ".join(f'"{name}"' for name in NOT_FINITE)
        return _number, f"a number in the range of {datatype.name} or one of {words}"
    if datatype.kind == "b":
        return lambda value: value if isinstance(value, bool) else None, "true or false"
    limits = np.iinfo(datatype.dtype)
    low, high = int(limits.min), int(limits.max)

    def integer(value: object) -> int | None:
        return value if type(value) is int and low <= value <= high else None

    return integer, f"an integer from {low} to {high}"


def _text(value: object) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:  # JSON can write half of a surrogate pair
        return None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def narrowed(wide: Array, datatype: Datatype) -> Array:
    """Numbers rounded to a floating-point `datatype`; those beyond its range become infinite."""
    with np.errstate(over="ignore"):
        if datatype is not _BF16:
            return wide.astype(datatype.dtype, copy=False)
        single = wide.astype(np.float32)
    # To the nearest, ties to even: add half of the lowest bit that stays, less one if that bit is 0.
    bits = single.view(np.uint32)
    rounded: Array = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding would turn a NaN whose bits are all set into a number.
    return np.where(np.isnan(single), _BF16_NAN, rounded.astype(np.uint16))


MAX_FILE_BYTES = 64 * 1024 * 1024

_FOLDER = "golden"
_SUFFIX = ".json"
_DOCUMENT = ("request", "response", "tolerance", "versions")
_REQUEST = ("id", "inputs", "outputs")
# Servers answer with the first three, so that a recorded response can be pasted. Only the outputs are compared.
_RESPONSE = ("id", "model_name", "model_version", "outputs")
_TOLERANCE = ("absolute", "relative")


def golden_requests(model_directory: Path, spec: ModelSpec, version: int) -> list[GoldenRequest]:
    """The golden requests of one version: `golden/*.json`, sorted by name, without dot-files.

    Raises InvalidModelConfig with a problem for every invalid file.
    """
    found: list[GoldenRequest] = []
    problems: list[Problem] = []
    try:
        names = _file_names(model_directory)
        if names and spec.decoupled:
            raise Malformed("golden requests are not supported for decoupled models", hint=f"remove {_FOLDER}/")
    except Malformed as error:
        raise InvalidModelConfig([_problem(spec, "", error)], model=spec.name) from error
    for name in names:
        try:
            request = _read(model_directory, name, spec, version)
        except Malformed as error:
            problems.append(_problem(spec, name, error))
        else:
            if request is not None:
                found.append(request)
    if problems:
        raise InvalidModelConfig(problems, model=spec.name)
    return found


def _problem(spec: ModelSpec, name: str, error: Malformed) -> Problem:
    if not name:
        return Problem(_FOLDER, f"model '{spec.name}': {error}", error.hint)
    return Problem(f"{_FOLDER}/{name}", f"golden request '{name}' of model '{spec.name}': {error}", error.hint)


def _file_names(model_directory: Path) -> list[str]:
    folder = path_inside(model_directory, _FOLDER)
    if folder is None:
        raise Malformed(f"{_FOLDER}/ is outside the model directory")
    try:
        return sorted(
            entry.name for entry in folder.iterdir() if entry.name.endswith(_SUFFIX) and not entry.name.startswith(".")
        )
    except OSError as error:
        if not os.path.lexists(folder):
            return []
        raise Malformed(f"failed to read {_FOLDER}/: {error.strerror}") from error


def _content(model_directory: Path, name: str) -> bytes:
    path = path_inside(model_directory, f"{_FOLDER}/{name}")
    if path is None:
        raise Malformed("the file is outside the model directory")
    try:
        return read_file(path, MAX_FILE_BYTES)
    except OSError as error:
        raise Malformed(f"failed to read the file: {error.strerror}") from error


def _read(model_directory: Path, name: str, spec: ModelSpec, version: int) -> GoldenRequest | None:
    """The request in one file; None if the file is for other versions."""
    document = Fields(read_json(_content(model_directory, name)), "", _DOCUMENT)
    if document.has("versions"):
        versions = document.integers("versions")
        if not versions:
            raise Malformed("versions: expected at least one version", hint="leave it out for all versions")
        if version not in versions:
            return None
    request = document.section("request", _REQUEST)
    outputs: tuple[str, ...] = ()
    if request.has("outputs"):
        outputs = tuple(_name(fields, "output", spec.outputs) for fields in request.sections("outputs", ("name",)))
    golden = GoldenRequest(
        name=name,
        id=request.text("id") if request.has("id") else "",
        inputs=tuple(golden_tensor(fields, spec.inputs) for fields in request.sections("inputs", TENSOR_FIELDS)),
        outputs=outputs,
        expected=_expected_outputs(document, spec, outputs),
    )
    made = golden.inference_request(spec)
    try:
        RequestValidator(spec).check(made)
    except InvalidRequest as error:
        raise Malformed(f"request: {error.message.removeprefix(made.log_prefix)}", hint=error.hint or "") from error
    return golden


def _name(fields: Fields, kind: str, known: Collection[str]) -> str:
    name = fields.text("name")
    if name not in known:
        raise Malformed(f"{fields.path_of('name')}: the model has no {kind} {shown(name)}", hint=nearest(name, known))
    return name


def _expected_outputs(document: Fields, spec: ModelSpec, asked: Sequence[str]) -> tuple[ExpectedOutput, ...]:
    response = document.section("response", _RESPONSE)
    floating = _tolerance(document, FLOATING)
    expected = []
    for fields in response.sections("outputs", (*TENSOR_FIELDS, "tolerance")):
        name = _name(fields, "output", spec.outputs)
        if asked and name not in asked:
            message = f"{fields.path_of('name')}: '{name}' is not among request.outputs"
            raise Malformed(message, hint="add it there, or leave out request.outputs")
        tensor = golden_tensor(fields)
        datatype = tensor.datatype
        if fields.has("tolerance") and datatype.kind in "bO":
            raise Malformed(f"{fields.path_of('tolerance')}: {datatype.name} is compared exactly", hint="leave it out")
        # The document's tolerance is for floating outputs only: labels are exact.
        expected.append(ExpectedOutput(tensor, _tolerance(fields, floating if is_floating(datatype) else EXACT)))
    if not expected:
        raise Malformed("response.outputs: expected at least one output")
    return tuple(expected)


def _tolerance(fields: Fields, otherwise: Tolerance) -> Tolerance:
    """The `tolerance` in `fields`; missing bounds are those of `otherwise`."""
    if not fields.has("tolerance"):
        return otherwise
    given = fields.section("tolerance", _TOLERANCE)
    bounds = [otherwise.absolute, otherwise.relative]
    for index, name in enumerate(_TOLERANCE):
        if given.has(name):
            bounds[index] = _bound(given, name)
    return Tolerance(*bounds)


def _bound(fields: Fields, name: str) -> float:
    value = fields.value(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        try:
            bound = float(value)
        except OverflowError:
            bound = math.inf
        if math.isfinite(bound):
            return bound
    raise Malformed(f"{fields.path_of(name)}: expected a number that is not negative, got {shown(value)}")


# --- JSON that people write: typed fields, no unknown fields, and errors that name the field

_LONGEST_SHOWN = 60


class Malformed(Exception):
    """An error in a document. The text begins with the field if the error concerns one; `hint` may be empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Fields:
    """The fields of one JSON object. `path` is the field that holds the object, empty for the whole document."""

    def __init__(self, value: object, path: str, known: Sequence[str]) -> None:
        """Raises Malformed if `value` is not an object or has a field that is not among `known`."""
        if not isinstance(value, dict):
            raise Malformed(f"{path or 'the document'}: expected an object, got {shown(value)}")
        self._values: dict[str, object] = value
        self._path = path
        for name in value:
            if name not in known:
                raise Malformed(f"{self.path_of(name)}: unknown field", hint=nearest(name, known))

    def path_of(self, name: str) -> str:
        name = _cut(name)
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> object:
        if name not in self._values:
            raise Malformed(f"{self.path_of(name)}: missing")
        return self._values[name]

    def text(self, name: str) -> str:
        value = self.value(name)
        if not isinstance(value, str):
            raise Malformed(f"{self.path_of(name)}: expected a string, got {shown(value)}")
        return value

    def elements(self, name: str) -> list[object]:
        value = self.value(name)
        if not isinstance(value, list):
            raise Malformed(f"{self.path_of(name)}: expected a list, got {shown(value)}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        integers = []
        for index, value in enumerate(self.elements(name)):
            if type(value) is not int or value < 0:  # in Python a bool is an int
                place = f"{self.path_of(name)}[{index}]"
                raise Malformed(f"{place}: expected an integer that is not negative, got {shown(value)}")
            integers.append(value)
        return tuple(integers)

    def section(self, name: str, known: Sequence[str]) -> Fields:
        return Fields(self.value(name), self.path_of(name), known)

    def sections(self, name: str, known: Sequence[str]) -> Sequence[Fields]:
        """A list of objects, each with a unique `name`."""
        path = self.path_of(name)
        sections = [Fields(value, f"{path}[{index}]", known) for index, value in enumerate(self.elements(name))]
        seen: set[str] = set()
        for entry in sections:
            own = entry.text("name")
            if own in seen:
                raise Malformed(f"{entry.path_of('name')}: {shown(own)} appears twice in {path}")
            seen.add(own)
        return sections


def read_json(content: bytes) -> object:
    """Parse a JSON text in UTF-8. Stricter than Python's parser: no NaN, and no name twice in one object.

    Raises Malformed.
    """
    try:
        value: object = json.loads(
            content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} is not UTF-8") from error
    except ValueError as error:  # JSONDecodeError, or an integer with more digits than Python accepts
        raise Malformed(f"not JSON: {error}") from error
    except RecursionError:
        raise Malformed("unreadable JSON: nested too deeply") from None
    return value


def shown(value: object) -> str:
    """A JSON value as messages show it; lists and objects only by their type."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        return repr(_cut(value))
    return _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Malformed(f"field {shown(name)} appears twice in one object")
            seen.add(name)
    return fields


def _no_constant(text: str) -> object:
    raise Malformed(f"not JSON: {text} is not a JSON number", hint=f'write it as a string: "{text}"')


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Malformed(f"number {_cut(text)} is out of range")
    return number
