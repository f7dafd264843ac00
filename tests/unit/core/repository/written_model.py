"""A model directory that a test writes, and a stand-in for the backend that reads its graphs."""

from __future__ import annotations

from pathlib import Path

from trident.core.config.autocomplete import BackendFacts, GpuIds
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.schema import ModelConfig
from trident.core.errors import BackendFailed
from trident.core.repository.config import load_config, read_config
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

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
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
    return load_config(directory, written, backends, auto_complete=auto_complete, version=version)
