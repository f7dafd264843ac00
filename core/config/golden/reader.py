"""Reads the golden requests of a model: JSON files in the folder `golden/` of the model directory.

They are Trident's own, not Triton's. docs/golden-requests.md describes them for their authors.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Collection, Sequence
from pathlib import Path

from core.config.golden.request import EXACT, FLOATING, ExpectedOutput, GoldenRequest, Tolerance
from core.config.golden.tensor import TENSOR_FIELDS, GoldenTensor, golden_tensor, is_floating
from core.config.json_fields import Fields, Malformed, nearest, read_json, shown
from core.config.model_spec import ModelSpec
from core.config.paths import path_inside
from core.config.problem import InvalidModelConfig, Problem
from core.config.request_validator import RequestValidator
from core.errors import InvalidRequest
from core.inference.tensors import Datatype

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
            entry.name
            for entry in folder.iterdir()
            if entry.name.endswith(_SUFFIX) and not entry.name.startswith(".") and not entry.is_dir()
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Malformed(f"failed to read {_FOLDER}/: {error.strerror}") from error


def _content(model_directory: Path, name: str) -> bytes:
    path = path_inside(model_directory, f"{_FOLDER}/{name}")
    if path is None:
        raise Malformed("the file is outside the model directory")
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe could take for ever
            raise Malformed("not a regular file")
        if found.st_size > MAX_FILE_BYTES:
            raise Malformed(f"the file has {found.st_size} bytes, more than the {MAX_FILE_BYTES} allowed")
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES)
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
        inputs=tuple(_input(fields, spec) for fields in request.sections("inputs", TENSOR_FIELDS)),
        outputs=outputs,
        expected=_expected_outputs(document, spec, outputs),
    )
    _validate(golden, spec)
    return golden


def _name(fields: Fields, kind: str, known: Collection[str]) -> str:
    """The name in `fields`, which must be one of `known`."""
    name = fields.text("name")
    if name not in known:
        raise Malformed(f"{fields.path_of('name')}: the model has no {kind} {shown(name)}", hint=nearest(name, known))
    return name


def _input(fields: Fields, spec: ModelSpec) -> GoldenTensor:
    _name(fields, "input", spec.inputs)
    return golden_tensor(fields)


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
        expected.append(ExpectedOutput(tensor, _output_tolerance(fields, tensor.datatype, floating)))
    if not expected:
        raise Malformed("response.outputs: expected at least one output")
    return tuple(expected)


def _output_tolerance(fields: Fields, datatype: Datatype, floating: Tolerance) -> Tolerance:
    """The tolerance of one output. The document's tolerance applies to floating outputs only: labels are exact."""
    if fields.has("tolerance") and datatype.kind in "bO":
        raise Malformed(f"{fields.path_of('tolerance')}: {datatype.name} is compared exactly", hint="leave it out")
    return _tolerance(fields, floating if is_floating(datatype) else EXACT)


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


def _validate(golden: GoldenRequest, spec: ModelSpec) -> None:
    """Check names, datatypes, shapes and batch size as for any other request. Raises Malformed."""
    request = golden.inference_request(spec)
    try:
        RequestValidator(spec).check(request)
    except InvalidRequest as error:
        raise Malformed(f"request: {error.message.removeprefix(request.log_prefix)}", hint=error.hint or "") from error
