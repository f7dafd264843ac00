"""The label files of a model's outputs: one label per line.

Source: docs/spec/repository.md section 1.12.
"""

from __future__ import annotations

from core.config.paths import path_inside
from core.config.schema import ModelConfig
from core.errors import ModelLoadFailed, Unsupported
from core.repository.layout import ModelDirectory


def read_labels(directory: ModelDirectory, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The labels of each output that names a label file, by output; a label's line number is its class index.

    Raises Unsupported for a file outside the model directory, ModelLoadFailed for an unreadable file.
    """
    return {
        entry.name: _read(directory, entry.name, entry.label_filename)
        for entry in config.output
        if entry.label_filename
    }


def _read(directory: ModelDirectory, output: str, file_name: str) -> tuple[str, ...]:
    path = path_inside(directory.path, file_name)
    if path is None:
        raise Unsupported(
            f"label file path '{file_name}' for output '{output}' in model '{directory.name}' is outside model "
            "directory",
            model=directory.name,
        )
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise ModelLoadFailed(
            f"failed to open text file for read {path}: {error.strerror}", model=directory.name
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return tuple(line.rstrip("\r") for line in lines)
