from __future__ import annotations

import pytest

from trident.core.backends.tensorrt.package import EngineError, error_of, failure_of, is_poison
from trident.core.cuda.driver import CudaError
from trident.core.errors import BackendFailed, ModelLoadFailed, OutOfMemory

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


def test_what_fails_at_load_is_a_failed_load() -> None:
    error = failure_of(EngineError(SHAPE), "unable to create TensorRT context", "m")
    assert type(error) is ModelLoadFailed
    assert error.message == f"unable to create TensorRT context: {SHAPE}"
    assert type(failure_of(EngineError(MEMORY), "unable to create TensorRT context", "m")) is OutOfMemory
