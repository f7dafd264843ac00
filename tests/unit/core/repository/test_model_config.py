"""A model directory, from its files to the checked configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.config.problem import InvalidModelConfig, Problem
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature, TensorSignature
from core.errors import BackendFailed, ErrorCode, ModelLoadFailed, ModelNotFound
from core.repository.layout import ModelDirectory
from core.repository.model_config import check_config, load_config, problems_of, read_config

COMPLETE = (
    'backend: "onnxruntime" max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } '
    'output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } '
)


class Graphs:
    """Stands for a backend: every version has the same graph, and each look at one is noted."""

    def __init__(self) -> None:
        self.inspected: list[str] = []

    def __call__(self, path: Path, config: ModelConfig) -> ModelSignature:
        self.inspected.append(path.name)
        if not (path / config.default_model_filename).exists():
            raise BackendFailed(f"no model in {path.name}")
        return ModelSignature((TensorSignature("IN", "FP32", (-1, 4)),), (TensorSignature("OUT", "FP32", (-1, 4)),))


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    for version in ("1", "3"):
        (tmp_path / "m" / version).mkdir(parents=True)
        (tmp_path / "m" / version / "model.onnx").touch()
    return ModelDirectory("m", tmp_path / "m")


def write(directory: ModelDirectory, text: str | bytes, name: str = "config.pbtxt") -> None:
    path = directory.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def loaded(
    directory: ModelDirectory, *, config_name: str = "", auto_complete: bool = True, **options: Any
) -> ModelConfig:
    """The configuration file, read and made complete."""
    written = read_config(directory, config_name=config_name, required=not auto_complete)
    return load_config(directory, written, auto_complete=auto_complete, **options)


def test_without_a_file_the_graph_says_it_all(directory: ModelDirectory) -> None:
    graphs = Graphs()
    config = loaded(directory, inspect=graphs)
    assert graphs.inspected == ["3"]
    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 4)
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert [(group.name, group.count) for group in config.instance_group] == [("m", 2)]
    assert problems_of(directory, inspect=graphs) == []


def test_a_version_may_be_completed_from_its_own_graph(directory: ModelDirectory) -> None:
    graphs = Graphs()
    loaded(directory, inspect=graphs, version=1)
    assert graphs.inspected == ["1"]


def test_a_complete_config_needs_no_graph(directory: ModelDirectory) -> None:
    write(directory, COMPLETE)
    graphs = Graphs()
    config = loaded(directory, inspect=graphs, gpu_ids=[0, 1])
    assert graphs.inspected == []
    assert not config.HasField("dynamic_batching")
    assert list(config.instance_group[0].gpus) == [0, 1]


def test_a_named_config_is_taken(directory: ModelDirectory) -> None:
    write(directory, COMPLETE)
    write(directory, COMPLETE.replace("8", "16"), "configs/big.pbtxt")
    assert loaded(directory, inspect=Graphs(), config_name="big").max_batch_size == 16
    assert loaded(directory, inspect=Graphs(), config_name="other").max_batch_size == 8


def test_without_auto_complete_a_file_is_required(directory: ModelDirectory, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelNotFound) as caught:
        loaded(directory, inspect=Graphs(), auto_complete=False)
    assert caught.value.message == "model configuration is not provided for model 'm'"
    missing = directory.path / "config.pbtxt"
    assert caplog.messages == [f"failed to open text file for read {missing}: No such file or directory"]
    assert [problem.path for problem in problems_of(directory, inspect=Graphs(), auto_complete=False)] == [
        str(directory.path)
    ]


def test_without_auto_complete_nothing_is_taken_from_the_graph(directory: ModelDirectory) -> None:
    write(directory, "max_batch_size: 2")
    graphs = Graphs()
    config = loaded(directory, inspect=graphs, auto_complete=False)
    assert graphs.inspected == []
    assert (config.backend, list(config.input), config.WhichOneof("scheduling_choice")) == ("onnxruntime", [], None)


def test_a_bad_config_raises_the_first_problem_and_carries_all(directory: ModelDirectory) -> None:
    write(directory, 'name: "n" max_batch_size: -2 sequence_batching {}')
    graphs = Graphs()
    with pytest.raises(InvalidModelConfig) as caught:
        loaded(directory, inspect=graphs)
    assert graphs.inspected == []
    assert caught.value.message == ("unexpected directory name 'm' for model 'n', directory name must equal model name")
    assert [problem.path for problem in caught.value.problems] == ["name", "max_batch_size", "sequence_batching"]
    assert tuple(problems_of(directory, inspect=graphs)) == caught.value.problems


WRONG_TENSORS = [
    (COMPLETE.replace("data_type: TYPE_FP32", "", 1), "model input 'IN' must specify 'data_type' for m"),
    (COMPLETE.replace('name: "IN"', ""), "model input must specify 'name' for m"),
    (COMPLETE.replace("dims: [ 4 ] } output", "} output"), "model input 'IN' must specify 'dims' for m"),
    (COMPLETE + 'output { name: "X" data_type: TYPE_FP32 dims: 0 }', "model output 'X' dimension must be integer >= 1"),
    ('output { name: "OUT" dims: [ 4 ] }', "model output 'OUT' must specify 'data_type' for m"),
    ("input { data_type: TYPE_FP32 dims: [ 4 ] }", "model input must specify 'name' for m"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_TENSORS)
def test_wrong_inputs_and_outputs_are_the_failure_of_a_version(
    directory: ModelDirectory, text: str, message: str
) -> None:
    """With auto-complete they are looked at when the graph has been, complete or not; without it at once."""
    write(directory, text)
    written = read_config(directory)
    check_config(directory, written, auto_complete=True, gpu_ids=())
    with pytest.raises(InvalidModelConfig) as caught:
        loaded(directory, inspect=Graphs())
    assert caught.value.message.startswith(message)
    with pytest.raises(InvalidModelConfig, match=message[:20]):
        check_config(directory, written, auto_complete=False, gpu_ids=())
    assert tuple(problems_of(directory, inspect=Graphs())) == caught.value.problems


def test_wrong_inputs_are_found_beside_what_keeps_the_graph_from_being_looked_at(directory: ModelDirectory) -> None:
    write(directory, 'max_batch_size: -1 input { name: "IN" dims: [ 4 ] }')
    found = problems_of(directory, inspect=Graphs())
    assert [problem.path for problem in found] == ["max_batch_size", "input[0].data_type"]
    write(directory, 'backend: "onnxruntime" input { name: "IN" dims: [ 4 ] }')
    (directory.path / "3" / "model.onnx").unlink()
    found = problems_of(directory, inspect=Graphs())
    assert [problem.path for problem in found] == ["input[0].data_type", str(directory.path / "3")]


@pytest.mark.parametrize("content", [b"max_batch_size: -", b"\xff\xfe"])
def test_a_file_that_cannot_be_parsed(directory: ModelDirectory, content: bytes) -> None:
    write(directory, content)
    with pytest.raises(InvalidModelConfig, match=r"^failed to read text proto from .*config.pbtxt: ") as caught:
        loaded(directory, inspect=Graphs())
    assert tuple(problems_of(directory, inspect=Graphs())) == caught.value.problems


def test_the_backends_own_error_comes_through(directory: ModelDirectory) -> None:
    (directory.path / "3" / "model.onnx").unlink()
    with pytest.raises(BackendFailed, match=r"^no model in 3$") as caught:
        loaded(directory, inspect=Graphs())
    assert caught.value.code is ErrorCode.INTERNAL
    [problem] = problems_of(directory, inspect=Graphs())
    assert (problem.path, problem.message) == (str(directory.path / "3"), "no model in 3")


def test_no_version_is_a_problem(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path)
    write(directory, COMPLETE)
    with pytest.raises(InvalidModelConfig, match=r"^at least one version must be available under the version policy"):
        loaded(directory, inspect=Graphs())
    write(directory, 'backend: "onnxruntime"')
    assert [problem.path for problem in problems_of(directory, inspect=Graphs())] == ["version_policy"]


def test_the_problems_of_files_and_graphs_are_found_without_loading(directory: ModelDirectory) -> None:
    write(directory, COMPLETE + 'version_policy { all {} } model_warmup { name: "w" }')
    assert problems_of(directory, inspect=Graphs()) == []
    bad = COMPLETE.replace("dims: [ 4 ] } output", "dims: [ 5 ] } output")
    write(directory, bad + "version_policy { all {} }")
    found = problems_of(directory, inspect=Graphs())
    assert [problem.path for problem in found] == ["input[0].dims"]
    warmup = 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { dims: -1 } } }'
    write(directory, COMPLETE.replace('"OUT"', '"OUT" label_filename: "none.txt"') + warmup)
    found = problems_of(directory, inspect=Graphs())
    assert [problem.path for problem in found] == ["output.label_filename", "model_warmup[0]"]
    (directory.path / "3" / "model.onnx").unlink()
    write(directory, COMPLETE)
    assert [problem.message for problem in problems_of(directory, inspect=Graphs())] == ["no model in 3"]


def test_each_version_is_completed_from_its_own_graph_and_judged_by_it(directory: ModelDirectory) -> None:
    def inspect(path: Path, config: ModelConfig) -> ModelSignature:
        datatype, batch = {"1": ("INT32", 2), "2": ("FP32", -1), "3": ("INT32", -1)}[path.name]
        tensor = TensorSignature(f"IN{path.name}", datatype, (batch, 4))
        return ModelSignature((tensor,), (tensor,))

    (directory.path / "2").mkdir()
    write(directory, "version_policy { all {} }")
    assert problems_of(directory, inspect=inspect) == []
    write(directory, "version_policy { all {} } max_batch_size: 2")
    (found,) = problems_of(directory, inspect=inspect)
    assert found.path == str(directory.path / "1")
    assert found.message.startswith("autofill failed for model 'm'")
    seen: list[str] = []

    def check(config: ModelConfig) -> None:
        seen.append(config.input[0].name)
        if config.input[0].name != "IN2":
            raise ModelLoadFailed("not here", hint="install it")

    write(directory, "version_policy { all {} }")
    assert problems_of(directory, inspect=inspect, check_backend=check) == [
        Problem("optimization.execution_accelerators", "not here", "install it")
    ]
    assert sorted(seen) == ["IN1", "IN2", "IN3"]


def test_what_is_wrong_whatever_the_graph_is_comes_first(directory: ModelDirectory) -> None:
    written = ModelConfig(backend="onnxruntime", max_batch_size=-1)
    with pytest.raises(InvalidModelConfig, match="max_batch_size"):
        check_config(directory, written, auto_complete=True, gpu_ids=())
    assert written == ModelConfig(backend="onnxruntime", max_batch_size=-1)
    check_config(directory, ModelConfig(backend="onnxruntime"), auto_complete=True, gpu_ids=())
