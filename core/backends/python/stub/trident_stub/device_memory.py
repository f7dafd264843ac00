"""Memory of a GPU, copied to the CPU with the driver's library: responses leave the process from there."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Protocol

from .dlpack import DeviceTensor
from .errors import TritonModelException


class Driver(Protocol):
    """The functions of libcuda by their names; each returns a status, 0 for success."""

    def __getitem__(self, name: str) -> Callable[..., Any]: ...


def copy_to_host(tensor: DeviceTensor, driver: Driver | None = None) -> bytes:
    """The elements of `tensor`, after what its device was given to do before. Raises TritonModelException."""
    if not tensor.size:
        return b""
    driver = driver or _installed_driver()
    context = ctypes.c_void_p()
    number = tensor.device.number
    elements = ctypes.create_string_buffer(tensor.size)
    # The context that the model's framework uses too: it exists, and stays.
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    try:
        _call(driver, "cuCtxPushCurrent_v2", context)
        try:
            _call(driver, "cuCtxSynchronize")
            size = ctypes.c_size_t(tensor.size)
            _call(driver, "cuMemcpyDtoH_v2", elements, ctypes.c_uint64(tensor.address), size)
        finally:
            _call(driver, "cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        _call(driver, "cuDevicePrimaryCtxRelease_v2", number)
    return elements.raw


def _installed_driver() -> Driver:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise TritonModelException(f"cannot copy a tensor from the GPU: {error}") from error


def _call(driver: Driver, name: str, *arguments: object) -> None:
    status = driver[name](*arguments)
    if status:
        raise TritonModelException(f"cannot copy a tensor from the GPU: {name} failed with CUDA error {status}")
