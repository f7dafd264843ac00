"""The module of a model: its import, under the name and with the path that Triton gives it.

Source: docs/spec/python-backend.md section 4.1.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any


class ModelFailed(Exception):
    """The model cannot be loaded, completed or asked. Its text is the reason: Triton's, or of what the model raised."""


def import_model(model_file: str, version_directory: str) -> Any:
    """The class TritonPythonModel of `model_file`. Raises ModelFailed, and all that the import may raise.

    A file in the version directory is the module VERSION.STEM, so that it can import its neighbours relatively. Any
    other is the file of a backend that is written in Python, and the module STEM.
    """
    folder, file = os.path.split(model_file)
    if not file.endswith(".py"):
        raise ModelFailed(f"Model name must end with '.py'. Model name provided: '{file}'")
    if not os.path.isfile(model_file):
        raise ModelFailed(f"Python model file not found in '{model_file}'")
    stem = file[: -len(".py")]
    if os.path.realpath(folder) != os.path.realpath(version_directory):
        sys.path.append(folder)
        return importlib.import_module(stem).TritonPythonModel
    version = os.path.basename(folder)
    sys.path += [folder, os.path.dirname(folder)]
    # Made here, because a folder of the same name elsewhere on the path would become a part of the package.
    package = types.ModuleType(version)
    package.__path__ = [folder]
    sys.modules[version] = package
    return importlib.import_module(f"{version}.{stem}").TritonPythonModel
