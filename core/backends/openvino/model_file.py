"""Finds the file of an OpenVINO model, and tells what it says itself. Imports no OpenVINO.

Source: docs/spec/framework-backends.md sections 6.1 and 6.6.
"""

from __future__ import annotations

from pathlib import Path

from core.backends.model_path import path_of_model
from core.backends.openvino.ir_header import signature_of_file
from core.backends.openvino.settings import OpenVinoSettings
from core.backends.openvino.tensors import as_converted
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature

DEFAULT_FILE = "model.xml"


def model_path(version: Path, config: ModelConfig) -> Path:
    """The file, or the folder of a SavedModel, in the directory of a version. Raises RepositoryUnavailable."""
    return path_of_model(version, config, config.default_model_filename or DEFAULT_FILE, is_there=Path.exists)


def signature_without_openvino(version: Path, config: ModelConfig) -> ModelSignature | None:
    """What OpenVINO's own format says of the tensors; None for other files, and where the inputs are to be reshaped.

    Raises a ServerError for a file that is missing or broken. A written batch size is taken as possible: only OpenVINO
    can tell whether the operators allow it.
    """
    path = model_path(version, config)
    if path.suffix != ".xml":
        return None
    signature = signature_of_file(path, config.name)
    if not config.input or not config.output:
        return signature
    reshapes = OpenVinoSettings.read(config).reshapes
    return None if reshapes else as_converted(config, signature, any_batch=config.max_batch_size > 0)
