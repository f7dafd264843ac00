"""What TensorRT and the driver report, as the server's errors."""

from __future__ import annotations

import re

from core.cuda.driver import CudaError
from core.errors import BackendFailed, ModelLoadFailed, OutOfMemory, ServerError

# TensorRT's texts never repeat one of a client.
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|requested amount of GPU memory")
_POISON = re.compile(r"Cuda Runtime \((?:an illegal memory access|unspecified launch failure|misaligned address)")


class EngineError(Exception):
    """TensorRT refused a call; the text is what it logged."""


def is_out_of_memory(text: str) -> bool:
    return _OUT_OF_MEMORY.search(text) is not None


def is_poison(exc: BaseException) -> bool:
    """Whether nothing can run again on the device in this process."""
    if isinstance(exc, CudaError):
        return exc.is_poison
    return _POISON.search(str(exc)) is not None


def error_of(exc: Exception, model: str) -> ServerError:
    """The server's error for a failed execution: a CudaError, an EngineError, or what TensorRT raises."""
    return failure_of(exc, f"unable to enqueue for inference {model}", model, BackendFailed)


def failure_of(exc: Exception, what: str, model: str, failed: type[ServerError] = ModelLoadFailed) -> ServerError:
    """OutOfMemory, or `failed`, for `what` was not possible because of `exc`."""
    message = f"{what}: {exc}"
    lacks_memory = exc.is_out_of_memory if isinstance(exc, CudaError) else is_out_of_memory(str(exc))
    if lacks_memory:
        return OutOfMemory(message, hint="use fewer instances, a smaller max_batch_size, or another GPU", model=model)
    return failed(message, model=model)
