"""Every problem of a model directory, found without serving it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.repository.written_model import COMPLETE, Graphs, loaded, model_with_versions, write
from trident.core.config.autocomplete import GpuIds
from trident.core.config.problem import InvalidModelConfig, ModelSignature, Problem, TensorSignature
from trident.core.config.schema import ModelConfig
from trident.core.errors import ModelLoadFailed, NotInstalled
from trident.core.repository.config import problems_of
from trident.core.repository.repository import ModelDirectory


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    return model_with_versions(tmp_path / "m", 1, 3)


def test_model_without_a_configuration_has_no_problems(directory: ModelDirectory) -> None:
    assert problems_of(directory, Graphs()) == []


def test_missing_required_configuration_is_a_problem(directory: ModelDirectory) -> None:
    found = problems_of(directory, Graphs(), auto_complete=False)
    assert [problem.path for problem in found] == [str(directory.path)]


@pytest.mark.parametrize(
    "content",
    [
        b'name: "n" max_batch_size: -2 sequence_batching {}',
        b"max_batch_size: -",
        b"\xff\xfe",
        COMPLETE.replace("data_type: TYPE_FP32", "", 1).encode(),
        b"input { data_type: TYPE_FP32 dims: [ 4 ] }",
    ],
)
def test_problems_are_those_that_loading_raises(directory: ModelDirectory, content: bytes) -> None:
    write(directory, content)
    with pytest.raises(InvalidModelConfig) as caught:
        loaded(directory, Graphs())
    assert tuple(problems_of(directory, Graphs())) == caught.value.problems


@pytest.mark.parametrize("named", ["/models/m/1", None])
def test_unreadable_folder_is_a_problem(directory: ModelDirectory, named: str | None) -> None:
    class Locked(Graphs):
        def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
            raise PermissionError(13, "Permission denied", named)

    found = problems_of(directory, Locked())
    assert [(each.path, each.message) for each in found] == [
        (named or str(directory.path), "failed to read model 'm': Permission denied")
    ]


def test_inputs_are_checked_even_if_the_graph_cannot_be_inspected(directory: ModelDirectory) -> None:
    write(directory, 'max_batch_size: -1 input { name: "IN" dims: [ 4 ] }')
    found = problems_of(directory, Graphs())
    assert [problem.path for problem in found] == ["max_batch_size", "input[0].data_type"]
    write(directory, 'backend: "onnxruntime" input { name: "IN" dims: [ 4 ] }')
    (directory.path / "3" / "model.onnx").unlink()
    found = problems_of(directory, Graphs())
    assert [problem.path for problem in found] == ["input[0].data_type", str(directory.path / "3")]


def test_error_of_the_backend_is_a_problem_of_the_version(directory: ModelDirectory) -> None:
    (directory.path / "3" / "model.onnx").unlink()
    [problem] = problems_of(directory, Graphs())
    assert (problem.path, problem.message) == (str(directory.path / "3"), "no model in 3")


def test_missing_version_is_a_problem(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path)
    write(directory, 'backend: "onnxruntime"')
    assert [problem.path for problem in problems_of(directory, Graphs())] == ["version_policy"]


def test_problems_of_files_and_graphs_are_found(directory: ModelDirectory) -> None:
    write(directory, COMPLETE + 'version_policy { all {} } model_warmup { name: "w" }')
    assert problems_of(directory, Graphs()) == []
    bad = COMPLETE.replace("dims: [ 4 ] } output", "dims: [ 5 ] } output")
    write(directory, bad + "version_policy { all {} }")
    found = problems_of(directory, Graphs())
    assert [problem.path for problem in found] == ["input[0].dims"]
    warmup = 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { dims: -1 } } }'
    write(directory, COMPLETE.replace('"OUT"', '"OUT" label_filename: "none.txt"') + warmup)
    found = problems_of(directory, Graphs())
    assert [problem.path for problem in found] == ["output.label_filename", "model_warmup[0]"]
    (directory.path / "3" / "model.onnx").unlink()
    write(directory, COMPLETE)
    assert [problem.message for problem in problems_of(directory, Graphs())] == ["no model in 3"]


class OwnGraphs(Graphs):
    """Each version has another graph, and only version 2 asks for nothing that the backend lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: list[str] = []

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        datatype, batch = {"1": ("INT32", 2), "2": ("FP32", -1), "3": ("INT32", -1)}[path.name]
        tensor = TensorSignature(f"IN{path.name}", datatype, (batch, 4))
        return ModelSignature((tensor,), (tensor,))

    def check(self, config: ModelConfig) -> None:
        self.checked.append(config.input[0].name)
        if config.input[0].name != "IN2":
            raise ModelLoadFailed("not here", hint="install it", field="platform")


def test_each_version_is_completed_from_and_checked_against_its_own_graph(directory: ModelDirectory) -> None:
    (directory.path / "2").mkdir()
    write(directory, "version_policy { all {} }")
    graphs = OwnGraphs()
    assert problems_of(directory, graphs) == [Problem("platform", "not here", "install it")]
    assert sorted(graphs.checked) == ["IN1", "IN2", "IN3"]
    write(directory, "version_policy { all {} } max_batch_size: 2")
    found = problems_of(directory, OwnGraphs())[0]
    assert found.path == str(directory.path / "1")
    assert found.message.startswith("autofill failed for model 'm'")


class MissingFramework(Graphs):
    def gpu_ids(self, config: ModelConfig) -> GpuIds:
        raise ModelLoadFailed("no such module", hint="install it")


def test_backend_that_cannot_be_imported_is_a_problem(directory: ModelDirectory) -> None:
    assert problems_of(directory, MissingFramework()) == [Problem(str(directory.path), "no such module", "install it")]


class WithoutFramework(Graphs):
    def check(self, config: ModelConfig) -> None:
        raise NotInstalled("no framework", hint="install it")


def test_a_version_that_is_checked_without_its_framework_is_noted(directory: ModelDirectory) -> None:
    noted: dict[Path, NotInstalled] = {}
    backends = WithoutFramework()
    assert problems_of(directory, backends, note_unchecked=noted.__setitem__) == []
    assert [(path.name, error.message) for path, error in noted.items()] == [("3", "no framework")]
    write(directory, COMPLETE.replace("dims: [ 4 ] } output", "dims: [ 5 ] } output"))
    assert [problem.path for problem in problems_of(directory, backends)] == ["input[0].dims"]


def test_an_error_of_the_check_without_a_field_is_that_of_the_version(directory: ModelDirectory) -> None:
    class Refuses(Graphs):
        def check(self, config: ModelConfig) -> None:
            raise ModelLoadFailed("not here")

    assert problems_of(directory, Refuses()) == [Problem(str(directory.path / "3"), "not here")]
