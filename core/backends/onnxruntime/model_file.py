"""Finds the files of an ONNX model.

Source: docs/spec/onnxruntime-backend.md section 5.1, docs/spec/model-config.md section 2.2.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from core.config.paths import is_plain
from core.config.schema import ModelConfig
from core.errors import RepositoryUnavailable
from core.repository.layout_mistakes import missing_file_hint

DEFAULT_FILE = "model.onnx"


def model_path(version: Path, config: ModelConfig, capability: str = "") -> Path:
    """The model file in the directory of a version, for a GPU of compute `capability` (`7.5`), or "" for a CPU.

    If the configured name is a directory, the file is `model.onnx` in it. Links are followed wherever they lead,
    because versions may share weights and the snapshots of a hub consist of links. Raises RepositoryUnavailable with
    Triton's text.
    """
    name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
    path = version / name
    if is_plain(name):
        found = path / DEFAULT_FILE if os.path.isdir(path) else path
        if os.path.isfile(found):
            return found
    raise RepositoryUnavailable(
        f"unable to find '{path}' for model instance '{config.name}'",
        hint=missing_file_hint(version, config, path.name),
        model=config.name,
    )


def library_path(version: Path, name: str) -> str:
    """The path of a custom operator library: in the model's directory, or else `name` for the system to find.

    Such libraries often belong to the server's installation, so `name` may be any path.
    """
    for folder in (version, version.parent):
        path = folder / name
        if is_plain(name) and os.path.isfile(path):
            return str(path)
    return name


def size_of_files(folder: Path) -> int:
    """The bytes of all files below `folder`. A file that vanishes meanwhile, or that cannot be read, counts as 0."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size
