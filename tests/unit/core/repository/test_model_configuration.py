"""A model directory that a test writes, and a stand-in for the backend that reads its graphs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trident.core.config.autocomplete import BackendFacts, GpuIds, Preparation
from trident.core.config.problem import InvalidModelConfig, ModelSignature, Problem, TensorSignature
from trident.core.config.schema import ModelConfig
from trident.core.errors import BackendFailed, ModelLoadFailed, ModelNotFound, NotInstalled
from trident.core.repository.check import check_model
from trident.core.repository.config import check_checksums, check_config, load_config, read_config
from trident.core.repository.repository import ModelDirectory

COMPLETE = (
    'backend: "onnxruntime" max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } '
    'output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } '
)


class Graphs:
    """A BackendFacts whose graphs are all the same; it records which versions it inspected."""

    def __init__(self, gpu_ids: GpuIds = ()) -> None:
        self.inspected: list[str] = []
        self._gpu_ids = gpu_ids

    def gpu_ids(self, config: ModelConfig) -> GpuIds:
        return self._gpu_ids

    def default_max_batch_size(self, config: ModelConfig) -> int:
        return 4

    def check(self, config: ModelConfig) -> None: ...

    def completes(self, config: ModelConfig) -> bool:
        return False

    def inspect(self, path: Path, config: ModelConfig, preparation: Preparation | None = None) -> ModelSignature:
        self.inspected.append(path.name)
        if not (path / config.default_model_filename).exists():
            raise BackendFailed(f"no model in {path.name}")
        return ModelSignature((TensorSignature("IN", "FP32", (-1, 4)),), (TensorSignature("OUT", "FP32", (-1, 4)),))


def model_with_versions(path: Path, *versions: int) -> ModelDirectory:
    """The model `path.name`, with an empty model file in each version and no configuration."""
    for version in versions:
        (path / str(version)).mkdir(parents=True)
        (path / str(version) / "model.onnx").touch()
    return ModelDirectory(path.name, path)


def write(directory: ModelDirectory, text: str | bytes, name: str = "config.pbtxt") -> None:
    path = directory.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def loaded(
    directory: ModelDirectory,
    backends: BackendFacts,
    *,
    config_name: str = "",
    auto_complete: bool = True,
    version: int | None = None,
) -> ModelConfig:
    """The configuration in the file, completed."""
    written = read_config(directory, config_name=config_name, required=not auto_complete)
    config, _ = load_config(directory, written, backends, auto_complete=auto_complete, version=version)
    return config


# --- the configuration of a model on the disk: its file, its completion, its problems, its checksums


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    return model_with_versions(tmp_path / "m", 1)


def test_named_configuration_takes_precedence(directory: ModelDirectory) -> None:
    write(directory, COMPLETE)
    write(directory, COMPLETE.replace("8", "16"), "configs/big.pbtxt")
    assert read_config(directory, config_name="big").max_batch_size == 16
    assert read_config(directory, config_name="other").max_batch_size == 8


def test_a_model_without_its_configuration(directory: ModelDirectory, caplog: pytest.LogCaptureFixture) -> None:
    assert read_config(directory) == ModelConfig()
    with pytest.raises(ModelNotFound) as caught:
        read_config(directory, required=True)
    assert caught.value.message == "model configuration is not provided for model 'm'"
    missing = directory.path / "config.pbtxt"
    assert caplog.messages == [f"failed to open text file for read {missing}: No such file or directory"]


@pytest.fixture
def stored(tmp_path: Path) -> ModelDirectory:
    return model_with_versions(tmp_path / "m", 1, 3)


WRONG_TENSORS = [
    (COMPLETE.replace("data_type: TYPE_FP32", "", 1), "model input 'IN' must specify 'data_type' for m"),
    (COMPLETE.replace('name: "IN"', ""), "model input must specify 'name' for m"),
    (COMPLETE.replace("dims: [ 4 ] } output", "} output"), "model input 'IN' must specify 'dims' for m"),
    (COMPLETE + 'output { name: "X" data_type: TYPE_FP32 dims: 0 }', "model output 'X' dimension must be integer >= 1"),
    ('output { name: "OUT" dims: [ 4 ] }', "model output 'OUT' must specify 'data_type' for m"),
    ("input { data_type: TYPE_FP32 dims: [ 4 ] }", "model input must specify 'name' for m"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_TENSORS)
def test_wrong_inputs_and_outputs_fail_a_version_not_the_model(stored: ModelDirectory, text: str, message: str) -> None:
    """With auto-complete they are checked after the graph was inspected; without it at once."""
    write(stored, text)
    written = read_config(stored)
    check_config(stored, written, Graphs(), auto_complete=True)
    with pytest.raises(InvalidModelConfig) as caught:
        loaded(stored, Graphs())
    assert caught.value.message.startswith(message)
    with pytest.raises(InvalidModelConfig, match=message[:20]):
        check_config(stored, written, Graphs(), auto_complete=False)


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
def test_problems_are_those_that_loading_raises(stored: ModelDirectory, content: bytes) -> None:
    write(stored, content)
    with pytest.raises(InvalidModelConfig) as caught:
        loaded(stored, Graphs())
    assert tuple(check_model(stored, Graphs()).problems) == caught.value.problems


@pytest.mark.parametrize("named", ["/models/m/1", None])
def test_unreadable_folder_is_a_problem(stored: ModelDirectory, named: str | None) -> None:
    class Locked(Graphs):
        def inspect(self, path: Path, config: ModelConfig, preparation: Preparation | None = None) -> ModelSignature:
            raise PermissionError(13, "Permission denied", named)

    found = check_model(stored, Locked()).problems
    assert [(each.path, each.message) for each in found] == [
        (named or str(stored.path), "failed to read model 'm': Permission denied")
    ]


def test_problems_of_files_and_graphs_are_found(stored: ModelDirectory) -> None:
    write(stored, COMPLETE + 'version_policy { all {} } model_warmup { name: "w" }')
    assert check_model(stored, Graphs()).problems == []
    bad = COMPLETE.replace("dims: [ 4 ] } output", "dims: [ 5 ] } output")
    write(stored, bad + "version_policy { all {} }")
    found = check_model(stored, Graphs()).problems
    assert [problem.path for problem in found] == ["input[0].dims"]
    warmup = 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { dims: -1 } } }'
    write(stored, COMPLETE.replace('"OUT"', '"OUT" label_filename: "none.txt"') + warmup)
    found = check_model(stored, Graphs()).problems
    assert [problem.path for problem in found] == ["output.label_filename", "model_warmup[0]"]
    (stored.path / "3" / "model.onnx").unlink()
    write(stored, COMPLETE)
    assert [problem.message for problem in check_model(stored, Graphs()).problems] == ["no model in 3"]


class OwnGraphs(Graphs):
    """Each version has another graph, and only version 2 asks for nothing that the backend lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: list[str] = []

    def inspect(self, path: Path, config: ModelConfig, preparation: Preparation | None = None) -> ModelSignature:
        datatype, batch = {"1": ("INT32", 2), "2": ("FP32", -1), "3": ("INT32", -1)}[path.name]
        tensor = TensorSignature(f"IN{path.name}", datatype, (batch, 4))
        return ModelSignature((tensor,), (tensor,))

    def check(self, config: ModelConfig) -> None:
        self.checked.append(config.input[0].name)
        if config.input[0].name != "IN2":
            raise ModelLoadFailed("not here", hint="install it", field="platform")


def test_each_version_is_completed_from_and_checked_against_its_own_graph(stored: ModelDirectory) -> None:
    (stored.path / "2").mkdir()
    write(stored, "version_policy { all {} }")
    graphs = OwnGraphs()
    assert check_model(stored, graphs).problems == [Problem("platform", "not here", "install it")]
    assert sorted(graphs.checked) == ["IN1", "IN2", "IN3"]
    write(stored, "version_policy { all {} } max_batch_size: 2")
    found = check_model(stored, OwnGraphs()).problems[0]
    assert found.path == str(stored.path / "1")
    assert found.message.startswith("autofill failed for model 'm'")


class MissingFramework(Graphs):
    def gpu_ids(self, config: ModelConfig) -> GpuIds:
        raise ModelLoadFailed("no such module", hint="install it")


def test_backend_that_cannot_be_imported_is_a_problem(stored: ModelDirectory) -> None:
    assert check_model(stored, MissingFramework()).problems == [
        Problem(str(stored.path), "no such module", "install it")
    ]


class WithoutFramework(Graphs):
    def check(self, config: ModelConfig) -> None:
        raise NotInstalled("no framework", hint="install it")


def test_a_version_that_is_checked_without_its_framework_is_noted(stored: ModelDirectory) -> None:
    backends = WithoutFramework()
    found = check_model(stored, backends)
    assert found.problems == []
    assert [(path.name, error.message) for path, error in found.unchecked] == [("3", "no framework")]
    write(stored, COMPLETE.replace("dims: [ 4 ] } output", "dims: [ 5 ] } output"))
    assert [problem.path for problem in check_model(stored, backends).problems] == ["input[0].dims"]


@pytest.mark.parametrize("written", [COMPLETE, ""])
def test_a_version_whose_file_needs_the_framework_is_noted_as_well(stored: ModelDirectory, written: str) -> None:
    class Unread(WithoutFramework):
        def inspect(
            self, path: Path, config: ModelConfig, preparation: Preparation | None = None
        ) -> ModelSignature | None:
            raise NotInstalled("no framework", hint="install it")

    write(stored, written)
    found = check_model(stored, Unread())
    assert found.problems == []
    assert [(path.name, error.message) for path, error in found.unchecked] == [("3", "no framework")]


RIGHT = hashlib.md5(b"graph").hexdigest()


def config(**checksums: str) -> ModelConfig:
    found = ModelConfig()
    agent = found.model_repository_agents.agents.add(name="checksum")
    for key, value in checksums.items():
        agent.parameters[key] = value
    return found


@pytest.fixture
def checked(tmp_path: Path) -> ModelDirectory:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"graph")
    (tmp_path / "secret").write_bytes(b"graph")
    return ModelDirectory("m", tmp_path / "m")


def test_files_with_their_md5_are_accepted(checked: ModelDirectory) -> None:
    check_checksums(checked, config(**{"MD5:1/model.onnx": RIGHT, "md5:./1/model.onnx": RIGHT.upper()}))


def test_a_file_of_a_version_is_checked_with_that_version(checked: ModelDirectory) -> None:
    written = config(**{"MD5:2/model.onnx": RIGHT})
    check_checksums(checked, written, without={2})
    with pytest.raises(InvalidModelConfig, match=r"^failed to open text file for read 2/model.onnx: No such file"):
        check_checksums(checked, written, without={1})


@pytest.mark.parametrize(
    ("name", "expected", "text"),
    [
        ("1/model.onnx", "0" * 32, f"Mismatched MD5 hash for file 1/model.onnx, expect: {'0' * 32}, got: {RIGHT}"),
        ("../secret", RIGHT, "file ../secret is outside of the model directory"),
    ],
)
def test_another_file_is_refused(checked: ModelDirectory, name: str, expected: str, text: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        check_checksums(checked, config(**{f"MD5:{name}": expected}))
    assert caught.value.message == text
