"""Golden requests, and the strict reading of their JSON."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trident.core.config.golden import (
    EXACT,
    FLOATING,
    MAX_FILE_BYTES,
    TENSOR_FIELDS,
    Fields,
    GoldenRequest,
    Malformed,
    Tolerance,
    as_numbers,
    golden_requests,
    golden_tensor,
    read_json,
)
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.inference.tensors import BY_NAME, Array


def malformed(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(Malformed) as caught:
        call()
    return str(caught.value), caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "field 'a' appears twice in one object"),
        (b'{"a": NaN}', "not JSON: NaN is not a JSON number"),
        (b"[-Infinity]", "not JSON: -Infinity is not a JSON number"),
        (b"[1e400]", "number 1e400 is out of range"),
        (b"\xff{}", "byte 0 is not UTF-8"),
        (b'{"a": ', "not JSON: Expecting value: line 1 column 7 (char 6)"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 100_000, "unreadable JSON: nested too deeply"),
    ],
)
def test_invalid_json_is_refused(content: bytes, message: str) -> None:
    assert malformed(lambda: read_json(content))[0] == message


def array(datatype: str, shape: list[int], values: list[Any]) -> Array:
    fields = Fields({"name": "X", "datatype": datatype, "shape": shape, "data": values}, "t", TENSOR_FIELDS)
    tensor = golden_tensor(fields)
    assert tensor.array.dtype == BY_NAME[datatype].dtype
    assert tensor.array.shape == tuple(shape)
    return tensor.array


def fault(datatype: str, shape: list[int], values: list[Any]) -> str:
    with pytest.raises(Malformed) as caught:
        array(datatype, shape, values)
    return str(caught.value)


INTEGERS = [name for name, row in BY_NAME.items() if row.kind in "iu" and name != "BF16"]
FLOATING_NAMES = ("FP16", "FP32", "FP64", "BF16")


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_the_ends_of_their_range(datatype: str) -> None:
    limits = np.iinfo(BY_NAME[datatype].dtype)
    low, high = int(limits.min), int(limits.max)
    assert array(datatype, [2], [low, high]).tolist() == [low, high]
    expected = f"expected an integer from {low} to {high}"
    assert fault(datatype, [2], [0, high + 1]) == f"t.data[1]: {expected}, got {high + 1}"
    assert fault(datatype, [2], [low - 1, 0]) == f"t.data[0]: {expected}, got {low - 1}"
    assert fault(datatype, [1], [1.0]) == f"t.data[0]: {expected}, got 1.0"
    assert fault(datatype, [1], [True]) == f"t.data[0]: {expected}, got true"


@pytest.mark.parametrize("datatype", FLOATING_NAMES)
def test_floating_values_include_nan_and_infinity(datatype: str) -> None:
    values = as_numbers(array(datatype, [5], [1.5, -2, "NaN", "Infinity", "-Infinity"]), BY_NAME[datatype])
    np.testing.assert_array_equal(values, np.array([1.5, -2, np.nan, np.inf, -np.inf]))
    assert fault(datatype, [1], ["nan"]).startswith(f"t.data[0]: expected a number in the range of {datatype} or one")
    assert fault(datatype, [1], [False]).endswith("got false")
    assert fault(datatype, [1], [None]).endswith("got null")
    assert fault(datatype, [1], [10**400]).startswith("t.data[0]: expected a number in the range")


def test_values_of_every_kind_are_converted() -> None:
    # 1 + 2**-8 lies between 1 and the next number, 1 + 2**-7; 1 + 3 * 2**-8 between that and 1 + 2**-6.
    bits = array("BF16", [4], [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12])
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81]
    assert array("BYTES", [2], ["é\0", ""]).tolist() == ["é\0".encode(), b""]
    assert array("BOOL", [2], [True, False]).tolist() == [True, False]
    assert fault("BOOL", [1], [1]) == "t.data[0]: expected true or false, got 1"
    assert fault("BYTES", [1], [1]) == "t.data[0]: expected a string of Unicode text, got 1"
    assert fault("BYTES", [1], ["\ud800"]).startswith("t.data[0]: expected a string of Unicode text")
    flat = array("INT8", [2, 1, 3], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(flat, array("INT8", [2, 1, 3], [[[1, 2, 3]], [[4, 5, 6]]]))
    assert array("INT8", [], [7]).tolist() == 7
    assert array("INT8", [2, 0], [[], []]).size == 0
    assert array("INT8", [2, 0], []).size == 0
    assert array("FP64", [0, 2**59], []).size == 0


@pytest.mark.parametrize(
    ("shape", "values", "message"),
    [
        ([2, 3], [1, 2, 3, 4, 5], "t.data: expected 6 elements for shape [2,3], got 5"),
        ([10**9, 10**9], [1], f"t.data: expected {10**18} elements for shape [1000000000,1000000000], got 1"),
        ([2, 2], [[1, 2], [3]], "t.data: expected 4 elements for shape [2,2], got 2"),
        ([2, 3], [[1, 2], [3, 4], [5, 6]], "t.data: expected 6 elements for shape [2,3], got [3,2]"),
        ([2], [[1, 2], 3], "t.data[0]: expected an integer from -128 to 127, got a list"),
        ([1], [[1]], "t.data: expected 1 elements for shape [1], got [1,1]"),
        ([2, 1], [[1], [300]], "t.data[1][0]: expected an integer from -128 to 127, got 300"),
        ([-1], [1], "t.shape[0]: expected an integer that is not negative, got -1"),
        ([1] * 65, [1], "t.shape: expected at most 64 dimensions, got 65"),
        ([0, 2**70], [], "t.shape: expected fewer elements"),
        ([0, 2**40, 2**40], [], "t.shape: expected fewer elements"),
    ],
)
def test_values_must_fill_the_shape(shape: list[int], values: list[Any], message: str) -> None:
    assert fault("INT8", shape, values).startswith(message)


FP32, INT32, BYTES = BY_NAME["FP32"], BY_NAME["INT32"], BY_NAME["BYTES"]
SPEC = ModelSpec(
    name="m",
    version=1,
    platform="",
    backend="onnxruntime",
    max_batch_size=8,
    inputs={"IMAGE": InputSpec(name="IMAGE", datatype=FP32, dims=(2,))},
    outputs={
        "SCORES": OutputSpec(name="SCORES", datatype=FP32, dims=(2,)),
        "CLASS": OutputSpec(name="CLASS", datatype=INT32, dims=(1,)),
        "LABEL": OutputSpec(name="LABEL", datatype=BYTES, dims=(1,)),
    },
)
SCORES = {"name": "SCORES", "datatype": "FP32", "shape": [1, 2], "data": [0.25, 0.75]}
CLASS = {"name": "CLASS", "datatype": "INT32", "shape": [1, 1], "data": [1]}
LABEL = {"name": "LABEL", "datatype": "BYTES", "shape": [1, 1], "data": ["cat"]}


def document(*outputs: Any, **fields: Any) -> dict[str, Any]:
    image = {"name": "IMAGE", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2.5]]}
    return copy.deepcopy({"request": {"inputs": [image]}, "response": {"outputs": list(outputs) or [SCORES]}} | fields)


def write(directory: Path, content: object, name: str = "a.json") -> None:
    path = directory / "golden" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def read(directory: Path, content: object) -> GoldenRequest:
    write(directory, content)
    (golden,) = golden_requests(directory, SPEC, 1)
    return golden


def problems(directory: Path, spec: ModelSpec = SPEC) -> tuple[Problem, ...]:
    with pytest.raises(InvalidModelConfig) as caught:
        golden_requests(directory, spec, 1)
    return caught.value.problems


def mistake(directory: Path, content: object) -> tuple[str, str]:
    write(directory, content)
    (problem,) = problems(directory)
    assert problem.path == "golden/a.json"
    beginning = "golden request 'a.json' of model 'm': "
    assert problem.message.startswith(beginning)
    return problem.message.removeprefix(beginning), problem.hint


def test_request_may_be_limited_to_versions(tmp_path: Path) -> None:
    write(tmp_path, document(versions=[2, 3]))
    assert golden_requests(tmp_path, SPEC, 1) == []
    assert len(golden_requests(tmp_path, SPEC, 3)) == 1
    assert mistake(tmp_path, document(versions=["1"]))[0].startswith("versions[0]: expected an integer")
    assert mistake(tmp_path, document(versions=[]))[0] == "versions: expected at least one version"


def test_only_floating_outputs_inherit_the_tolerance(tmp_path: Path) -> None:
    def tolerances(**fields: Any) -> list[Tolerance]:
        return [each.tolerance for each in read(tmp_path, document(SCORES, CLASS, LABEL, **fields)).expected]

    assert tolerances() == [FLOATING, EXACT, EXACT]
    assert tolerances(tolerance={"absolute": 0.5}) == [Tolerance(0.5, FLOATING.relative), EXACT, EXACT]
    scores, number = {**SCORES, "tolerance": {"relative": 0.1}}, {**CLASS, "tolerance": {"absolute": 1}}
    golden = read(tmp_path, document(scores, number, tolerance={"absolute": 0, "relative": 0}))
    assert [each.tolerance for each in golden.expected] == [Tolerance(0, 0.1), Tolerance(1, 0)]


@pytest.mark.parametrize("bound", [-1, "1", True, None, 10**400])
def test_tolerance_must_be_a_non_negative_number(tmp_path: Path, bound: object) -> None:
    message = mistake(tmp_path, document(tolerance={"absolute": bound}))[0]
    assert message.startswith("tolerance.absolute: expected a number that is not negative, got ")


@pytest.mark.parametrize(
    ("place", "value", "message", "hint"),
    [
        ("tolerence", {}, "tolerence: unknown field", "did you mean 'tolerance'?"),
        ("request.input", [], "request.input: unknown field", "did you mean 'inputs'?"),
        ("request.inputs", {}, "request.inputs: expected a list, got an object", ""),
        ("request.id", 1, "request.id: expected a string, got 1", ""),
        (
            "request.inputs.0.name",
            "IMAGES",
            "request.inputs[0].name: the model has no input 'IMAGES'",
            "did you mean 'IMAGE'?",
        ),
        ("request.inputs.0.dtype", "FP32", "request.inputs[0].dtype: unknown field", "did you mean 'datatype'?"),
        (
            "request.inputs.0.data.0.1",
            1e39,
            "request.inputs[0].data[0][1]: expected a number in the range of FP32, got 1e+39",
            "",
        ),
        ("request.inputs", [], "request: expected 1 inputs but got 0 inputs for model 'm'.", "the inputs are: IMAGE"),
        (
            "request.inputs.0.datatype",
            "FP64",
            "request: inference input 'IMAGE' data-type is 'FP64', but model 'm' expects 'FP32'",
            "send IMAGE as FP32, in numpy .astype('float32')",
        ),
        (
            "request.outputs",
            [{"name": "CLASS"}],
            "response.outputs[0].name: 'SCORES' is not among request.outputs",
            "add it there, or leave out request.outputs",
        ),
        (
            "response.outputs.0.name",
            "SCORE",
            "response.outputs[0].name: the model has no output 'SCORE'",
            "did you mean 'SCORES'?",
        ),
        ("response.outputs", [], "response.outputs: expected at least one output", ""),
        ("response.outputs", [SCORES, SCORES], "response.outputs[1].name: 'SCORES' appears twice", ""),
        (
            "response.outputs",
            [{**LABEL, "tolerance": {"absolute": 0}}],
            "response.outputs[0].tolerance: BYTES is compared exactly",
            "leave it out",
        ),
    ],
)
def test_error_names_the_field(tmp_path: Path, place: str, value: object, message: str, hint: str) -> None:
    content: Any = document()
    target = content
    *way, last = [int(step) if step.isdigit() else step for step in place.split(".")]
    for step in way:
        target = target[step]
    target[last] = value
    found = mistake(tmp_path, content)
    assert found[0].startswith(message)
    assert found[1] == hint


def test_decoupled_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, document())
    (problem,) = problems(tmp_path, replace(SPEC, decoupled=True))
    assert problem.message == "model 'm': golden requests are not supported for decoupled models"


def test_too_large_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, b"")
    os.truncate(tmp_path / "golden" / "a.json", MAX_FILE_BYTES + 1)
    (problem,) = problems(tmp_path)
    assert f"it has {MAX_FILE_BYTES + 1} bytes, and may have {MAX_FILE_BYTES}" in problem.message


def test_link_out_of_the_model_directory_is_refused(tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    outside.mkdir()
    write(outside, document())
    model.mkdir()
    (model / "golden").symlink_to(outside / "golden")
    (problem,) = problems(model)
    assert (problem.path, problem.message) == ("golden", "model 'm': golden/ is outside the model directory")
    (model / "golden").unlink()
    (model / "golden").mkdir()
    (model / "golden" / "a.json").symlink_to(outside / "golden" / "a.json")
    (problem,) = problems(model)
    assert problem.message.endswith("the file is outside the model directory")


def test_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "a.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "golden" / "b.json")
    (tmp_path / "golden" / "c.json").mkdir()
    missing, pipe, folder = problems(tmp_path)
    assert missing.message.endswith("failed to read the file: No such file or directory")
    assert pipe.message.endswith("not a regular file")
    assert folder.message.endswith("Is a directory")


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_golden_file_in_place_of_the_folder_is_a_problem(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "golden")
    (problem,) = problems(tmp_path)
    assert problem.message.startswith("model 'm': failed to read golden/: No")
