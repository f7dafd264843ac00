"""The shared libraries of ONNX Runtime's execution providers: why one of them cannot be loaded."""

from __future__ import annotations

import ctypes
from pathlib import Path

from core.backends.onnxruntime.execution_providers import CUDA, OPENVINO, TENSORRT

_LIBRARIES = {
    CUDA: "libonnxruntime_providers_cuda.so",
    TENSORRT: "libonnxruntime_providers_tensorrt.so",
    OPENVINO: "libonnxruntime_providers_openvino.so",
}


def missing_library(provider: str, folder: Path) -> str:
    """The linker's message about the library of `provider` in `folder`, ONNX Runtime's; "" if it can be linked."""
    name = _LIBRARIES.get(provider)
    if name is None:
        return ""
    try:
        ctypes.CDLL(str(folder / name))
    except OSError as error:
        # The symbols of ONNX Runtime itself exist only when ONNX Runtime loads the library.
        return "" if "undefined symbol" in str(error) else str(error)
    return ""
