"""A stream on a device: copies that run one after the other while the host does something else.

Source: NVIDIA's CUDA driver API reference, sections "Stream Management" and "Event Management".
"""

from __future__ import annotations

import ctypes

from core.cuda.driver import CudaDriver

# It does not wait for the default stream, which other libraries of the process use.
_NON_BLOCKING = 1
_BLOCKING_SYNC, _DISABLE_TIMING = 1, 2


class CudaStream:
    """One thread at a time, inside `CudaDriver.on` for the device. Every method raises CudaError.

    `handle` is what libraries take as a stream. `spins`: `wait` polls instead of sleeping, which is some microseconds
    faster and costs a core. `priority` above 0 runs before other streams, below 0 after them.
    """

    def __init__(self, driver: CudaDriver, *, priority: int = 0, spins: bool = False) -> None:
        self._driver = driver
        self._stream, self._event = ctypes.c_void_p(), ctypes.c_void_p()
        lowest, highest = ctypes.c_int(), ctypes.c_int()
        driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(lowest), ctypes.byref(highest))
        level = highest.value if priority > 0 else lowest.value if priority < 0 else 0
        flags, level_argument = ctypes.c_uint(_NON_BLOCKING), ctypes.c_int(level)
        driver.call("cuStreamCreateWithPriority", ctypes.byref(self._stream), flags, level_argument)
        event_flags = _DISABLE_TIMING if spins else _DISABLE_TIMING | _BLOCKING_SYNC
        driver.call("cuEventCreate", ctypes.byref(self._event), ctypes.c_uint(event_flags))

    @property
    def handle(self) -> int:
        return self._stream.value or 0

    def copy_to_device(self, address: int, host: int, size: int) -> None:
        """Begin to copy `size` bytes from the address `host`, which must stay as they are until `wait` returns."""
        self._driver.call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(host),
            ctypes.c_size_t(size),
            self._stream,
        )

    def copy_to_host(self, host: int, address: int, size: int) -> None:
        """Begin to copy `size` bytes to the address `host`; they are there when `wait` returns."""
        self._driver.call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(host),
            ctypes.c_uint64(address),
            ctypes.c_size_t(size),
            self._stream,
        )

    def wait(self) -> None:
        """Block until all that was begun is done. Other threads of the interpreter run meanwhile."""
        self._driver.call("cuEventRecord", self._event, self._stream)
        self._driver.call("cuEventSynchronize", self._event)

    def close(self) -> None:
        self._driver.call("cuEventDestroy_v2", self._event)
        self._driver.call("cuStreamDestroy_v2", self._stream)
