"""From the written configuration of a model directory to the complete one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.repository.written_model import COMPLETE, Graphs, loaded, model_with_versions, write
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.errors import BackendFailed, ErrorCode
from trident.core.repository.config import check_config, read_config
from trident.core.repository.repository import ModelDirectory


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    return model_with_versions(tmp_path / "m", 1, 3)


def test_graph_supplies_a_missing_configuration(directory: ModelDirectory) -> None:
    graphs = Graphs()
    config = loaded(directory, graphs)
    assert graphs.inspected == ["3"]
    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 4)
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert [(group.name, group.count) for group in config.instance_group] == [("m", 2)]


def test_requested_version_supplies_the_graph(directory: ModelDirectory) -> None:
    graphs = Graphs()
    loaded(directory, graphs, version=1)
    assert graphs.inspected == ["1"]


def test_complete_configuration_needs_no_graph(directory: ModelDirectory) -> None:
    write(directory, COMPLETE)
    graphs = Graphs([0, 1])
    config = loaded(directory, graphs)
    assert graphs.inspected == []
    assert not config.HasField("dynamic_batching")
    assert list(config.instance_group[0].gpus) == [0, 1]


def test_disabled_auto_complete_takes_nothing_from_the_graph(directory: ModelDirectory) -> None:
    write(directory, "max_batch_size: 2")
    graphs = Graphs()
    config = loaded(directory, graphs, auto_complete=False)
    assert graphs.inspected == []
    assert (config.backend, list(config.input), config.WhichOneof("scheduling_choice")) == ("onnxruntime", [], None)


def test_invalid_configuration_raises_the_first_problem_and_carries_all(directory: ModelDirectory) -> None:
    write(directory, 'name: "n" max_batch_size: -2')
    graphs = Graphs()
    with pytest.raises(InvalidModelConfig) as caught:
        loaded(directory, graphs)
    assert graphs.inspected == []
    assert caught.value.message == ("unexpected directory name 'm' for model 'n', directory name must equal model name")
    assert [problem.path for problem in caught.value.problems] == ["name", "max_batch_size"]


WRONG_TENSORS = [
    (COMPLETE.replace("data_type: TYPE_FP32", "", 1), "model input 'IN' must specify 'data_type' for m"),
    (COMPLETE.replace('name: "IN"', ""), "model input must specify 'name' for m"),
    (COMPLETE.replace("dims: [ 4 ] } output", "} output"), "model input 'IN' must specify 'dims' for m"),
    (COMPLETE + 'output { name: "X" data_type: TYPE_FP32 dims: 0 }', "model output 'X' dimension must be integer >= 1"),
    ('output { name: "OUT" dims: [ 4 ] }', "model output 'OUT' must specify 'data_type' for m"),
    ("input { data_type: TYPE_FP32 dims: [ 4 ] }", "model input must specify 'name' for m"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_TENSORS)
def test_wrong_inputs_and_outputs_fail_a_version_not_the_model(
    directory: ModelDirectory, text: str, message: str
) -> None:
    """With auto-complete they are checked after the graph was inspected; without it at once."""
    write(directory, text)
    written = read_config(directory)
    check_config(directory, written, Graphs(), auto_complete=True)
    with pytest.raises(InvalidModelConfig) as caught:
        loaded(directory, Graphs())
    assert caught.value.message.startswith(message)
    with pytest.raises(InvalidModelConfig, match=message[:20]):
        check_config(directory, written, Graphs(), auto_complete=False)


def test_error_of_the_backend_is_raised_as_it_is(directory: ModelDirectory) -> None:
    (directory.path / "3" / "model.onnx").unlink()
    with pytest.raises(BackendFailed, match=r"^no model in 3$") as caught:
        loaded(directory, Graphs())
    assert caught.value.code is ErrorCode.INTERNAL


def test_model_without_versions_is_invalid(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path)
    write(directory, COMPLETE)
    with pytest.raises(InvalidModelConfig, match=r"^at least one version must be available under the version policy"):
        loaded(directory, Graphs())


def test_check_finds_problems_that_do_not_depend_on_the_graph(directory: ModelDirectory) -> None:
    written = ModelConfig(backend="onnxruntime", max_batch_size=-1)
    with pytest.raises(InvalidModelConfig, match="max_batch_size"):
        check_config(directory, written, Graphs(), auto_complete=True)
    assert written == ModelConfig(backend="onnxruntime", max_batch_size=-1)
    check_config(directory, ModelConfig(backend="onnxruntime"), Graphs(), auto_complete=True)
