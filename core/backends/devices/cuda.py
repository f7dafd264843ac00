"""NVIDIA's driver and runtime, asked without any package: GPUs, compute capability, pinned memory, libraries.

Everything is called through ctypes and only where ONNX Runtime has its CUDA provider. Never before a fork: the driver
does not survive one.
Source: NVIDIA's CUDA driver and runtime API references.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from core.inference.tensors import Array

_log = logging.getLogger("trident.backends")

_DRIVER = "libcuda.so.1"
# The runtime that ONNX Runtime has loaded is found by its name; one of these, newest first.
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_PORTABLE = 1

_PROVIDER_LIBRARIES = {
    "CUDAExecutionProvider": "libonnxruntime_providers_cuda.so",
    "TensorrtExecutionProvider": "libonnxruntime_providers_tensorrt.so",
    "OpenVINOExecutionProvider": "libonnxruntime_providers_openvino.so",
}


class CudaLibrary(Protocol):
    """The functions of a CUDA library by name: they return its code, 0 for success."""

    def __getattr__(self, name: str, /) -> Callable[..., int]: ...


Load = Callable[[str], CudaLibrary]


def _load(name: str) -> CudaLibrary:
    return ctypes.CDLL(name)


def device_ids(load: Load = _load) -> tuple[int, ...]:
    """The CUDA devices that this process may use, by CUDA's numbers; empty without a driver or without a GPU."""
    driver = _driver(load)
    count = ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(range(count.value))


def compute_capability(device_id: int, load: Load = _load) -> str:
    """`7.5`, as `cc_model_filenames` has it; "" if the driver does not tell."""
    driver = _driver(load)
    device = ctypes.c_int()
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(device_id)) != 0:
        return ""
    numbers = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        number = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(number), ctypes.c_int(attribute), device) != 0:
            return ""
        numbers.append(str(number.value))
    return ".".join(numbers)


def _driver(load: Load) -> CudaLibrary | None:
    try:
        driver = load(_DRIVER)
    except OSError:
        return None
    return driver if driver.cuInit(ctypes.c_uint(0)) == 0 else None


def missing_library(provider: str, folder: Path) -> str:
    """What the library of an execution provider, in ONNX Runtime's `folder`, cannot load; "" if that is not it."""
    name = _PROVIDER_LIBRARIES.get(provider)
    if name is None:
        return ""
    try:
        ctypes.CDLL(str(folder / name))
    except OSError as error:
        # What a provider takes from ONNX Runtime itself is only there when ONNX Runtime loads it.
        return "" if "undefined symbol" in str(error) else str(error)
    return ""


class PinnedMemory:
    """Pins staging buffers in place, so that the GPU copies from them without a detour. The instance's thread only.

    A buffer that cannot be pinned is used as it is: slower, not wrong.
    """

    def __init__(self, runtime: CudaLibrary) -> None:
        self._runtime = runtime
        self._pinned: dict[str, Array] = {}

    @classmethod
    def open(cls, load: Load = _load) -> PinnedMemory | None:
        """On the CUDA runtime of this process; None where there is none."""
        for name in _RUNTIMES:
            try:
                return cls(load(name))
            except OSError:
                continue
        return None

    def replace(self, name: str, buffer: Array | None) -> None:
        """Pin `buffer` in place of the one that bore `name` before; None: only let go of that one."""
        before = self._pinned.pop(name, None)
        if before is not None:
            self._runtime.cudaHostUnregister(ctypes.c_void_p(before.ctypes.data))
        if buffer is None:
            return
        address, size = ctypes.c_void_p(buffer.ctypes.data), ctypes.c_size_t(buffer.nbytes)
        code = self._runtime.cudaHostRegister(address, size, ctypes.c_uint(_PORTABLE))
        if code == 0:
            self._pinned[name] = buffer
        else:
            _log.debug("cannot pin %d bytes for '%s': CUDA error %d", buffer.nbytes, name, code)
