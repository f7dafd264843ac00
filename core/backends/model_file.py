"""Where the files of an ONNX model are.

Source: spec/onnxruntime-backend.md section 5.1, spec/model-config.md section 2.2.
"""

from __future__ import annotations

from pathlib import Path

from core.config.paths import path_inside
from core.config.schema import ModelConfig
from core.errors import RepositoryUnavailable

DEFAULT_FILE = "model.onnx"


def model_path(version: Path, config: ModelConfig, capability: str = "") -> Path:
    """The model file in the directory of a version, for a GPU of compute `capability` (`7.5`), or "" for a CPU.

    Where the name is a directory it is the file `model.onnx` in it. Raises RepositoryUnavailable with Triton's text.
    """
    name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
    path = version / name
    if path_inside(version, name) is not None:
        found = path / DEFAULT_FILE if path.is_dir() else path
        if found.is_file():
            return found
    raise RepositoryUnavailable(
        f"unable to find '{path}' for model instance '{config.name}'",
        hint="put the model there, or name its file in default_model_filename",
        model=config.name,
    )


def library_path(version: Path, name: str) -> str:
    """A custom operator library: from the model's own directory if it is there, otherwise wherever the system finds it.

    Such libraries belong to the server's installation more often than to a model, so any path may be named.
    """
    for folder in (version, version.parent):
        path = path_inside(folder, name)
        if path is not None and path.is_file():
            return str(path)
    return name
