"""Where the files of an ONNX model are.

Source: docs/spec/onnxruntime-backend.md section 5.1, docs/spec/model-config.md section 2.2.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from core.config.paths import is_plain
from core.config.schema import ModelConfig
from core.errors import RepositoryUnavailable

DEFAULT_FILE = "model.onnx"


def model_path(version: Path, config: ModelConfig, capability: str = "") -> Path:
    """The model file in the directory of a version, for a GPU of compute `capability` (`7.5`), or "" for a CPU.

    Where the name is a directory it is the file `model.onnx` in it. Links are followed wherever they lead: versions
    share weights, and snapshots of a hub are made of links. Raises RepositoryUnavailable with Triton's text.
    """
    name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
    path = version / name
    if is_plain(name):
        found = path / DEFAULT_FILE if os.path.isdir(path) else path
        if os.path.isfile(found):
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
