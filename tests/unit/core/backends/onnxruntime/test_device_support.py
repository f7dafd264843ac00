from __future__ import annotations

from pathlib import Path

from trident.core.backends.onnxruntime.device_support import device_support, provider_states

CUDA = "CUDAExecutionProvider"


def test_a_provider_is_absent_or_lacks_its_library(tmp_path: Path) -> None:
    states = {state.name: state for state in provider_states([CUDA, "CPUExecutionProvider"], tmp_path)}
    assert set(states) == {CUDA, "TensorrtExecutionProvider", "OpenVINOExecutionProvider"}
    assert states[CUDA].installed
    assert "libonnxruntime_providers_cuda.so" in states[CUDA].problem
    assert states["TensorrtExecutionProvider"].installed is False
    assert states["TensorrtExecutionProvider"].problem == ""
    assert all(state.cure for state in states.values())


def test_the_installed_framework_is_named() -> None:
    assert device_support().framework.startswith("ONNX Runtime 1.")
