"""The errors for ONNX Runtime's exceptions, with texts that it really produces."""

from __future__ import annotations

import pytest

from trident.core.backends.onnxruntime.session import failure_of, is_poison
from trident.core.errors import BackendFailed, ModelLoadFailed, OutOfMemory

PREFIX = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node. Status Message: "
DEVICE = " ; GPU=0 ; hostname=box ; file=/x/cuda_call.cc ; line=129 ; expr=cudaStreamSynchronize(s); "


def test_the_code_and_text_of_an_exception_are_kept() -> None:
    error = failure_of(RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : what\nhappened"), "m")
    assert type(error) is BackendFailed
    assert error.message == "onnx runtime error 2: what\nhappened"
    assert error.model == "m"


def test_an_exception_without_a_code_is_a_failure() -> None:
    assert failure_of(RuntimeError("bindings said no"), "m").message == "onnx runtime error 1: bindings said no"
    assert failure_of(RuntimeError(), "m").message == "onnx runtime error 1: RuntimeError"


def test_a_failed_load_has_its_own_class() -> None:
    assert type(failure_of(RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : x"), "m", ModelLoadFailed)) is (
        ModelLoadFailed
    )


@pytest.mark.parametrize(
    "exc",
    [
        RuntimeError(
            f"{PREFIX}bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 281474976710656"
        ),
        RuntimeError(f"{PREFIX}CUDA failure 2: out of memory{DEVICE}"),
        RuntimeError(f"{PREFIX}Available memory of 1048576 is smaller than requested bytes of 4000000"),
        RuntimeError(f"{PREFIX}CudaMempoolArena::Alloc: cudaMallocFromPoolAsync failed: out of memory"),
        RuntimeError(f"{PREFIX}CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED{DEVICE}"),
        RuntimeError(f"{PREFIX}CUDNN failure 4003: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED{DEVICE}"),
        RuntimeError(f"{PREFIX}CUDNN_FE failure 4003: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED{DEVICE}"),
        RuntimeError(f"{PREFIX}CUFFT failure 2: CUFFT_ALLOC_FAILED{DEVICE}"),
        RuntimeError(f"{PREFIX}CURAND failure 102: CURAND_STATUS_ALLOCATION_FAILED{DEVICE}"),
        RuntimeError("std::bad_alloc"),
        MemoryError("Unable to allocate 4.00 TiB"),
    ],
)
@pytest.mark.parametrize("failed", [BackendFailed, ModelLoadFailed])
def test_out_of_memory_is_recognized(exc: Exception, failed: type[BackendFailed]) -> None:
    assert type(failure_of(exc, "m", failed)) is OutOfMemory


@pytest.mark.parametrize(
    "text",
    [
        "CUDA failure 700: an illegal memory access was encountered",
        "CUDA error 719: unspecified launch failure",
        "CUDA failure 710: device-side assert triggered",
        "CUDNN failure 8: CUDNN_STATUS_EXECUTION_FAILED",
        "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED",
    ],
)
def test_a_lost_context_is_recognized(text: str) -> None:
    assert is_poison(RuntimeError(PREFIX + text + DEVICE))


@pytest.mark.parametrize(
    "text",
    [
        f"CUDA failure 2: out of memory{DEVICE}",
        f"CUDNN failure 9: CUDNN_STATUS_NOT_SUPPORTED{DEVICE}",
        f"CUDA failure 1: invalid argument{DEVICE}",
        "cannot parse 'CUDA failure 700: an illegal memory access was encountered'",
        "indices element out of data bounds, idx=700",
    ],
)
def test_other_failures_do_not_poison(text: str) -> None:
    assert not is_poison(RuntimeError(PREFIX + text))
