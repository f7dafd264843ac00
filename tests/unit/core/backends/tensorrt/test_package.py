"""The package `tensorrt`: whether it is installed, and its errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trident.core.backends.tensorrt.package import EngineError, device_support, error_of, is_poison, load_failure_of
from trident.core.cuda import CudaError
from trident.core.errors import BackendFailed, DeviceLost, ModelLoadFailed, OutOfMemory


@pytest.mark.parametrize(
    ("source", "framework", "problem"),
    [
        ("__version__ = '10.9.0.34'", "TensorRT 10.9.0.34", ""),
        ("raise ImportError('libnvinfer.so.10: cannot open')", "TensorRT", "libnvinfer.so.10: cannot open"),
        ("raise ModuleNotFoundError('tensorrt')", "TensorRT is not installed (optional)", ""),
    ],
)
def test_device_support_names_the_installed_version(
    source: str, framework: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    found = device_support()
    sys.modules.pop("tensorrt", None)
    assert found.framework == framework
    assert [each.problem for each in found.providers] == [problem] * bool(problem)


# --- errors


MEMORY = "[defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)"
ACCESS = "[genericReformat.cu::execute::1] Error Code 1: Cuda Runtime (an illegal memory access was encountered)"
SHAPE = "Error Code 3: API Usage Error (set dimension is out of its profile)"


@pytest.mark.parametrize(
    ("exc", "kind", "poison"),
    [
        (EngineError(MEMORY), OutOfMemory, False),
        (
            EngineError("[executionContext.cpp] Error Code 2: OutOfMemory (Requested size was 9 bytes.)"),
            OutOfMemory,
            False,
        ),
        (EngineError(ACCESS), BackendFailed, True),
        (EngineError(SHAPE), BackendFailed, False),
        (RuntimeError("infer_shapes failed"), BackendFailed, False),
        (CudaError("cuMemAlloc_v2 failed with CUDA error 2", 2), OutOfMemory, False),
        (CudaError("cuEventSynchronize failed with CUDA error 719", 719), BackendFailed, True),
        (CudaError("cuStreamCreateWithPriority failed with CUDA error 201", 201), BackendFailed, False),
    ],
)
def test_failures_are_told_apart(exc: Exception, kind: type[Exception], poison: bool) -> None:
    error = error_of(exc, "m")
    assert type(error) is kind
    assert error.message == f"unable to enqueue for inference m: {exc}"
    assert is_poison(exc) is poison


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (EngineError(SHAPE), ModelLoadFailed),
        (EngineError(MEMORY), OutOfMemory),
        (EngineError(ACCESS), DeviceLost),
        (CudaError("cuStreamCreateWithPriority failed with CUDA error 700", 700), DeviceLost),
    ],
)
def test_failures_at_load_are_load_failures(exc: Exception, kind: type[Exception]) -> None:
    error = load_failure_of(exc, "unable to create TensorRT context", "m", 1)
    assert type(error) is kind
    assert error.message == f"unable to create TensorRT context: {exc}"
    assert getattr(error, "device", "gpu:1") == "gpu:1"
