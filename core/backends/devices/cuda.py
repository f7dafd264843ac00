"""NVIDIA's driver: which GPUs this process may use, and their compute capabilities.

It is called through ctypes, so it needs no package. Never call it before a fork: the driver does not survive one.
Source: NVIDIA's CUDA driver API reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

_DRIVER = "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


class CudaLibrary(Protocol):
    """The functions of a CUDA library by name. They return a CUDA code; 0 is success."""

    def __getattr__(self, name: str, /) -> Callable[..., int]: ...


LoadLibrary = Callable[[str], CudaLibrary]


def load_library(name: str) -> CudaLibrary:
    """Raises OSError if there is no such library."""
    return ctypes.CDLL(name)


def gpu_ids(min_compute_capability: float = 0.0, load: LoadLibrary = load_library) -> tuple[int, ...]:
    """The CUDA numbers of the GPUs with at least that compute capability; empty without a driver or a GPU."""
    driver = _driver(load)
    count = ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    numbers = range(count.value)
    return tuple(i for i in numbers if float(compute_capability(i, load) or 0) >= min_compute_capability)


def compute_capability(device_id: int, load: LoadLibrary = load_library) -> str:
    """The capability as `cc_model_filenames` spells it, for example `7.5`; "" if the driver does not tell."""
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


def _driver(load: LoadLibrary) -> CudaLibrary | None:
    try:
        driver = load(_DRIVER)
    except OSError:
        return None
    return driver if driver.cuInit(ctypes.c_uint(0)) == 0 else None
