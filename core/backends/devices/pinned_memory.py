"""Pinned host memory, from which a GPU copies directly.

Source: NVIDIA's CUDA driver API reference, section "Memory Management".
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable

from core.cuda.driver import CudaDriver, CudaError
from core.inference.tensors import Array

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
