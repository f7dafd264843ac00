"""Finds the file of a plan, and tells what is wrong with one. Needs no TensorRT.

Source: docs/spec/framework-backends.md sections 6.1 and 6.5.
"""

from __future__ import annotations

import os
from pathlib import Path

from trident.core.backends.model_files import content_hint, origin_of, start_of
from trident.core.config.problem import is_plain
from trident.core.config.schema import ModelConfig
from trident.core.errors import RepositoryUnavailable

DEFAULT_FILE = "model.plan"

# What people call plans.
_ENDINGS = (".plan", ".engine", ".trt")
_ONNX = b"\x08"
_METADATA_AT_MOST = 1 << 20


def plan_path(version: Path, config: ModelConfig, capability: str = "") -> Path:
    """The plan in the directory of a version, for a GPU of compute `capability` (`9.0`).

    Raises RepositoryUnavailable with Triton's text.
    """
    name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
    path = version / name
    if is_plain(name) and path.is_file():
        return path
    raise RepositoryUnavailable(
        f"unable to find '{path}' for model instance '{config.name}'",
        hint=_missing_hint(version, name),
        model=config.name,
    )


def _missing_hint(version: Path, wanted: str) -> str:
    try:
        others = sorted(name for name in os.listdir(version) if name.endswith(_ENDINGS) and name != wanted)
    except OSError:
        others = []
    if not others:
        return "put the plan there, or name its file in default_model_filename, or by GPU in cc_model_filenames"
    return f"the version directory has '{others[0]}': rename it, or set default_model_filename: \"{others[0]}\""


def plan_problem(path: Path) -> str | None:
    """Why the file cannot be a plan, with the cure; None if it may be one. Reads its beginning only."""
    if hint := content_hint(path):
        return hint
    origin = origin_of(path) or ""
    if origin.startswith("TensorRT"):
        return None
    if _starts_with_metadata(path):
        return (
            "the file has a text about the model before the plan, as exports of Ultralytics do: remove it, which is "
            "4 bytes with its length and the text itself"
        )
    start = start_of(path, 1)
    if origin:
        return f"the file was written by {origin}, and is no plan: build one with trtexec --saveEngine=model.plan"
    if path.suffix == ".onnx" or start == _ONNX:
        return "the file may be an ONNX model: build a plan with trtexec --onnx=FILE --saveEngine=model.plan"
    return "the file does not begin as plans of TensorRT 8 and later do: copy it again, or build it again"


def _starts_with_metadata(path: Path) -> bool:
    start = start_of(path, 5)
    if start is None or len(start) < 5 or start[4:] != b"{":
        return False
    return 0 < int.from_bytes(start[:4], "little") < _METADATA_AT_MOST
