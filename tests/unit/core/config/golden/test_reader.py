"""Golden requests read from their files."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trident.core.config.golden import EXACT, FLOATING, MAX_FILE_BYTES, GoldenRequest, Tolerance, golden_requests
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.inference.tensors import BY_NAME

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


def test_reader_reads_request_and_expected_outputs(tmp_path: Path) -> None:
    golden = read(tmp_path, document(SCORES, CLASS))
    assert (golden.name, golden.id, golden.outputs) == ("a.json", "", ())
    assert [(each.name, each.array.tolist()) for each in golden.inputs] == [("IMAGE", [[1, 2.5]])]
    assert [each.tensor.name for each in golden.expected] == ["SCORES", "CLASS"]
    request = golden.inference_request(SPEC)
    assert (request.model_name, request.model_version, request.id) == ("m", 1, "a.json")


def test_files_are_sorted_and_other_files_ignored(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "Z.json", ".hidden.json", "notes.txt", "c.json.bak"):
        write(tmp_path, document() if name.endswith(".json") and name[0] != "." else b"junk", name)
    (tmp_path / "golden" / "folder.json").mkdir()
    assert [each.name for each in golden_requests(tmp_path, SPEC, 1)] == ["Z.json", "a.json", "b.json"]


def test_model_without_golden_requests_has_none(tmp_path: Path) -> None:
    assert golden_requests(tmp_path, SPEC, 1) == []
    (tmp_path / "golden").write_text("no folder")
    assert golden_requests(tmp_path, SPEC, 1) == []


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


def test_recorded_response_can_be_pasted(tmp_path: Path) -> None:
    content = document()
    content["response"] |= {"id": "1", "model_name": "m", "model_version": "1"}
    content["request"] |= {"id": "cat", "outputs": [{"name": "SCORES"}]}
    golden = read(tmp_path, content)
    assert golden.outputs == ("SCORES",)
    assert golden.inference_request(SPEC).id == "cat"


@pytest.mark.parametrize(
    ("place", "value", "message", "hint"),
    [
        (["tolerence"], {}, "tolerence: unknown field", "did you mean 'tolerance'?"),
        (["request", "input"], [], "request.input: unknown field", "did you mean 'inputs'?"),
        (["request", "inputs"], {}, "request.inputs: expected a list, got an object", ""),
        (["request", "id"], 1, "request.id: expected a string, got 1", ""),
        (
            ["request", "inputs", 0, "name"],
            "IMAGES",
            "request.inputs[0].name: the model has no input 'IMAGES'",
            "did you mean 'IMAGE'?",
        ),
        (
            ["request", "inputs", 0, "dtype"],
            "FP32",
            "request.inputs[0].dtype: unknown field",
            "did you mean 'datatype'?",
        ),
        (
            ["request", "inputs", 0, "data", 0, 1],
            1e39,
            "request.inputs[0].data[0][1]: expected a number in the range of FP32, got 1e+39",
            "",
        ),
        (
            ["request", "inputs"],
            [],
            "request: expected 1 inputs but got 0 inputs for model 'm'.",
            "the inputs are: IMAGE",
        ),
        (
            ["request", "inputs", 0, "datatype"],
            "FP64",
            "request: inference input 'IMAGE' data-type is 'FP64', but model 'm' expects 'FP32'",
            "",
        ),
        (
            ["request", "outputs"],
            [{"name": "CLASS"}],
            "response.outputs[0].name: 'SCORES' is not among request.outputs",
            "add it there, or leave out request.outputs",
        ),
        (
            ["response", "outputs", 0, "name"],
            "SCORE",
            "response.outputs[0].name: the model has no output 'SCORE'",
            "did you mean 'SCORES'?",
        ),
        (["response", "outputs"], [], "response.outputs: expected at least one output", ""),
        (["response", "outputs"], [SCORES, SCORES], "response.outputs[1].name: 'SCORES' appears twice", ""),
        (
            ["response", "outputs"],
            [{**LABEL, "tolerance": {"absolute": 0}}],
            "response.outputs[0].tolerance: BYTES is compared exactly",
            "leave it out",
        ),
    ],
)
def test_error_names_the_field(tmp_path: Path, place: list[Any], value: object, message: str, hint: str) -> None:
    content: Any = document()
    target = content
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    found = mistake(tmp_path, content)
    assert found[0].startswith(message)
    assert found[1] == hint


def test_requested_output_must_exist(tmp_path: Path) -> None:
    content = document()
    content["request"]["outputs"] = [{"name": "SCORES"}, {"name": "SCORE"}]
    assert mistake(tmp_path, content) == (
        "request.outputs[1].name: the model has no output 'SCORE'",
        "did you mean 'SCORES'?",
    )


@pytest.mark.parametrize("place", ["inputs", "outputs"])
def test_long_name_gives_a_short_message(tmp_path: Path, place: str) -> None:
    content = document()
    content["request"][place] = [{"name": "x" * 100_000}]
    assert len(mistake(tmp_path, content)[0]) < 200
    assert len(mistake(tmp_path, {"x" * 100_000: 1})[0]) < 200


@pytest.mark.parametrize("missing", ["request", "response"])
def test_missing_section_is_an_error(tmp_path: Path, missing: str) -> None:
    content = document()
    del content[missing]
    assert mistake(tmp_path, content) == (f"{missing}: missing", "")


def test_invalid_json_is_refused(tmp_path: Path) -> None:
    assert mistake(tmp_path, b"{")[0].startswith("not JSON: ")
    assert mistake(tmp_path, [])[0] == "the document: expected an object, got a list"


def test_every_invalid_file_is_a_problem(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path, b"junk", name)
    write(tmp_path, document(), "c.json")
    assert [problem.path for problem in problems(tmp_path)] == ["golden/a.json", "golden/b.json"]


def test_decoupled_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, document())
    (problem,) = problems(tmp_path, replace(SPEC, decoupled=True))
    assert problem.message == "model 'm': golden requests are not supported for decoupled models"


def test_too_large_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, b"")
    os.truncate(tmp_path / "golden" / "a.json", MAX_FILE_BYTES + 1)
    (problem,) = problems(tmp_path)
    assert f"the file has {MAX_FILE_BYTES + 1} bytes, more than the {MAX_FILE_BYTES} allowed" in problem.message


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


def test_link_within_the_model_directory_is_followed(tmp_path: Path) -> None:
    write(tmp_path, document(), "elsewhere.txt")
    (tmp_path / "golden" / "a.json").symlink_to("elsewhere.txt")
    assert [each.name for each in golden_requests(tmp_path, SPEC, 1)] == ["a.json"]


def test_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "a.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "golden" / "b.json")
    missing, pipe = problems(tmp_path)
    assert missing.message.endswith("failed to read the file: No such file or directory")
    assert pipe.message.endswith("not a regular file")
