"""An allocation of a client on a GPU, which the engine reads and writes.

Source: docs/spec/shared-memory.md sections 3 and 7.
"""

from __future__ import annotations

import logging
import weakref

import numpy as np

from core.cuda.driver import CudaDriver, CudaError
from core.errors import RegionFailed
from core.inference.region_tensors import DevicePlace
from core.inference.tensors import Buffer

# That of the addresses which the driver allocates itself.
_ALIGNMENT = 256

_log = logging.getLogger("trident.shared_memory")


class CudaMemory:
    """Any thread. The handle is closed with the last reference."""

    __slots__ = ("__weakref__", "_address", "_device_id", "_driver")

    def __init__(self, driver: CudaDriver, device_id: int, handle: bytes) -> None:
        """Raises CudaError."""
        self._driver = driver
        self._device_id = device_id
        self._address = address = driver.open_handle(device_id, handle)
        weakref.finalize(self, _close, driver, device_id, address).atexit = False

    @property
    def size(self) -> int:
        """The size of the allocation in bytes. Raises CudaError."""
        return self._driver.size_from(self._device_id, self._address)

    def read(self, offset: int, content: memoryview) -> None:
        try:
            self._driver.copy_to_host(self._device_id, self._address + offset, _address_of(content), len(content))
        except CudaError as error:
            raise self._failed("read", error) from error

    def write(self, offset: int, content: Buffer) -> None:
        size = len(content)
        if not size:
            return
        try:
            self._driver.copy_to_device(self._device_id, self._address + offset, _address_of(content), size)
        except CudaError as error:
            raise self._failed("written", error) from error

    def on_device(self, offset: int, size: int) -> DevicePlace | None:
        """None for an offset that the kernels of a model might not read: a misaligned access ends all work on a GPU."""
        address = self._address + offset
        return DevicePlace(self._device_id, address, size) if address % _ALIGNMENT == 0 else None

    def view(self, offset: int, size: int) -> memoryview:
        raise RegionFailed("memory of a GPU cannot be used in place")

    def _failed(self, action: str, error: CudaError) -> RegionFailed:
        return RegionFailed(f"CUDA shared memory on device {self._device_id} cannot be {action}: {error}")


def _address_of(content: Buffer) -> int:
    address: int = np.frombuffer(content, np.uint8).ctypes.data
    return address


def _close(driver: CudaDriver, device_id: int, address: int) -> None:
    try:
        driver.close_handle(device_id, address)
    except CudaError as error:
        _log.warning("CUDA shared memory on device %d was not closed: %s", device_id, error)
