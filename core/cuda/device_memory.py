"""Memory on a device, kept for the next execution.

Source: NVIDIA's CUDA driver API reference, section "Memory Management".
"""

from __future__ import annotations

import ctypes

from core.cuda.driver import CudaDriver

# An empty tensor needs an address as well.
_LEAST = 256


class DeviceMemory:
    """One block, as large as the largest that was asked for. One thread at a time, inside `CudaDriver.on`."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._address = ctypes.c_uint64()
        self._size = 0

    def address(self, size: int) -> int:
        """The address of at least `size` bytes. What was in a smaller block is lost. Raises CudaError."""
        if size > self._size or not self._size:
            self.close()
            wanted = max(size, _LEAST)
            self._driver.call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(wanted))
            self._size = wanted
        return self._address.value

    def close(self) -> None:
        """Free the block. The next call of `address` makes another. Raises CudaError."""
        if self._size:
            # Also if that fails: nobody else can free it.
            self._size = 0
            self._driver.call("cuMemFree_v2", self._address)
