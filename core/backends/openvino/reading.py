"""The graph of a model's file as OpenVINO reads it, and OpenVINO's errors.

Source: docs/spec/framework-backends.md sections 6.1 and 6.6.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openvino

from core.backends.file_content import content_hint
from core.backends.file_origin import written_by
from core.errors import ModelLoadFailed, ServerError

_WRONG_WEIGHTS = "Incorrect weights in bin file"
_NO_OPERATOR = re.compile(r"Cannot create (\S{1,100}) layer .*unsupported opset: (\S{1,100})")


def read_model(core: Any, path: Path, model: str) -> Any:
    """The graph of the model at `path`. Raises ModelLoadFailed with OpenVINO's text."""
    try:
        return core.read_model(str(path))
    except RuntimeError as exc:
        raise failure_of(exc, "reading the model", ModelLoadFailed, model, _hint(path, str(exc))) from exc


def _hint(path: Path, text: str) -> str:
    if hint := content_hint(path):
        return hint
    if path.suffix == ".xml":
        weights = path.with_suffix(".bin")
        if not weights.is_file():
            return f"the weights are missing: put '{weights.name}' beside '{path.name}'"
        if hint := content_hint(weights):
            return f"'{weights.name}': {hint}"
        if _WRONG_WEIGHTS in text:
            return f"'{weights.name}' is incomplete, or belongs to another '{path.name}': copy both again"
    if match := _NO_OPERATOR.search(text):
        return (
            f"the model has the operator {match[1]} of {match[2]}, which OpenVINO {openvino.__version__} does not "
            "know: name the library that has it in the parameter CPU_EXTENSION_PATH, or install a newer OpenVINO"
        )
    return f"the file{written_by(path)} is not a model that OpenVINO {openvino.__version__} reads, or incomplete"


def failure_of(
    exc: Exception, step: str, failed: type[ServerError], model: str, hint: str | None = None
) -> ServerError:
    """The server's error for an exception of OpenVINO, with Triton's text."""
    # OpenVINO begins with the places in its own sources, and ends with empty lines.
    lines = [line for line in str(exc).splitlines() if line.strip() and not line.startswith("Exception from ")]
    return failed(f"openvino error in {step} : {' '.join(lines)}", hint=hint, model=model)
