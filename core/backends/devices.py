"""NVIDIA's driver: which GPUs this process may use, and their compute capabilities.

It is called through ctypes, so it needs no package. Never call it before a fork: the driver does not survive one.
Source: NVIDIA's CUDA driver API reference.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Protocol

from trident.core.cuda.driver import CudaDriver, CudaError
from trident.core.inference.tensors import Array

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


# Source: NVIDIA's CUDA driver API reference, section "Memory Management".


_log = logging.getLogger("trident.backends")

# For all devices of the process.
_PORTABLE = 1


class PinnedMemory:
    """Pins the staging buffers of one instance where they are. The instance's thread only.

    A buffer that cannot be pinned is used as it is; copies from it are slower.
    """

    def __init__(self, driver: CudaDriver, device_id: int) -> None:
        self._driver = driver
        self._device_id = device_id
        self._pinned: dict[str, Array] = {}

    @classmethod
    def open(
        cls, device_id: int, open_driver: Callable[[], CudaDriver | None] = CudaDriver.open
    ) -> PinnedMemory | None:
        """For copies to one device; None without a driver."""
        driver = open_driver()
        return cls(driver, device_id) if driver is not None else None

    def replace(self, name: str, buffer: Array | None) -> None:
        """Release the buffer that was pinned under `name`, and pin `buffer` instead unless it is None."""
        before = self._pinned.pop(name, None)
        try:
            with self._driver.on(self._device_id):
                if before is not None:
                    self._driver.call("cuMemHostUnregister", ctypes.c_void_p(before.ctypes.data))
                if buffer is None:
                    return
                address, size = ctypes.c_void_p(buffer.ctypes.data), ctypes.c_size_t(buffer.nbytes)
                self._driver.call("cuMemHostRegister_v2", address, size, ctypes.c_uint(_PORTABLE))
                self._pinned[name] = buffer
        except CudaError as error:
            _log.debug("cannot pin %d bytes for '%s': %s", 0 if buffer is None else buffer.nbytes, name, error)
