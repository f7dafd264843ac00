"""NVIDIA's driver, called through ctypes, so that it needs no package. It does not survive a fork: use it after.

    gpu_ids         the GPUs of this machine
    CudaDriver      the calls, in the primary context of a device
    CudaStream      a stream of one instance: asynchronous copies, and waiting for them without the interpreter's lock
    DeviceBlock     memory on a device that grows when more is asked for
    PinnedBuffers   memory of the host from which copies are fast

Source: NVIDIA's CUDA driver API reference: "Memory Management", "Primary Context Management", "Stream Management" and
"Event Management".
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]

_log = logging.getLogger("trident.backends")

_LIBRARY = "libcuda.so.1"
# Peer access between GPUs is enabled when it is needed.
_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2
# An uncorrectable memory error, an error that the GPU has contained, an illegal address, a kernel stopped at its time
# limit, a destroyed context, an assertion on the device, faults of a kernel, and leaked tensor memory. The CUDA runtime
# has the same numbers.
POISON = frozenset({214, 226, 700, 702, 709, 710, *range(714, 720), 721})
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
# Pinned memory is it for all devices of the process.
_PORTABLE = 1
HANDLE_SIZE = 64


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which the driver takes by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_SIZE),)


class DriverLibrary(Protocol):
    """The functions of libcuda by their names; each returns a status, 0 for success."""

    def __getitem__(self, name: str, /) -> Callable[..., int]: ...


class CudaError(Exception):
    """A call of the driver failed; `status` is the driver's number for the reason, 0 if it was not asked."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_out_of_memory(self) -> bool:
        return self.status == _OUT_OF_MEMORY

    @property
    def is_poison(self) -> bool:
        """True if every further call in the process's context on the device fails as well."""
        return self.status in POISON


LoadLibrary = Callable[[str], DriverLibrary]


def gpu_ids(min_compute_capability: float = 0.0, load: LoadLibrary = ctypes.CDLL) -> tuple[int, ...]:
    """The CUDA numbers of the GPUs with at least that compute capability; empty without a driver or a GPU."""
    driver = CudaDriver.open(load)
    if driver is None:
        return ()
    return tuple(i for i in range(driver.count) if float(driver.compute_capability(i) or 0) >= min_compute_capability)


def compute_capability(device_id: int, load: LoadLibrary = ctypes.CDLL) -> str:
    """The capability as `cc_model_filenames` spells it, for example `7.5`; "" if the driver does not tell."""
    driver = CudaDriver.open(load)
    return "" if driver is None else driver.compute_capability(device_id)


class CudaDriver:
    """Any thread. Works in the primary contexts of the devices, which the frameworks use, too, and keeps them."""

    def __init__(self, library: DriverLibrary) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._contexts: dict[int, ctypes.c_void_p] = {}

    @classmethod
    def open(cls, load: LoadLibrary = ctypes.CDLL) -> CudaDriver | None:
        """The driver of this machine; None without one, or without a GPU."""
        try:
            driver = cls(load(_LIBRARY))
            driver.call("cuInit", ctypes.c_uint(0))
            return driver if driver.count else None
        except (OSError, CudaError):
            return None

    @property
    def count(self) -> int:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def compute_capability(self, device_id: int) -> str:
        """The capability of a GPU, for example `7.5`; "" if the driver does not tell."""
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        try:
            self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_id))
            self.call("cuDeviceGetAttribute", ctypes.byref(major), ctypes.c_int(_CAPABILITY_MAJOR), device)
            self.call("cuDeviceGetAttribute", ctypes.byref(minor), ctypes.c_int(_CAPABILITY_MINOR), device)
        except CudaError:
            return ""
        return f"{major.value}.{minor.value}"

    def open_handle(self, device_id: int, handle: bytes) -> int:
        """The address of the allocation on the device to which `handle` refers. Raises CudaError."""
        address = ctypes.c_uint64()
        given = IpcHandle.from_buffer_copy(handle)
        with self.on(device_id):
            self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def close_handle(self, device_id: int, address: int) -> None:
        """Raises CudaError."""
        with self.on(device_id):
            self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def size_from(self, device_id: int, address: int) -> int:
        """Bytes from `address` to the end of its allocation. Raises CudaError."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        with self.on(device_id):
            self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value + size.value - address

    def copy_to_host(self, device_id: int, address: int, host: int, size: int) -> None:
        """Copy from the device to the address `host`. Raises CudaError."""
        with self.on(device_id):
            self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def copy_to_device(self, device_id: int, address: int, host: int, size: int) -> None:
        """Copy from the address `host` to the device; returns when it is there. Raises CudaError."""
        with self.on(device_id):
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(host), ctypes.c_size_t(size))
            # A copy from pageable memory returns when it has been read, not when it has arrived.
            self.call("cuStreamSynchronize", ctypes.c_void_p())

    @contextmanager
    def on(self, device_id: int) -> Iterator[None]:
        """Make the device's primary context the thread's, also for libraries that use the CUDA runtime.

        Raises CudaError, also for an unknown device.
        """
        self.call("cuCtxPushCurrent_v2", self._context(device_id))
        popped = ctypes.byref(ctypes.c_void_p())
        try:
            yield
        except BaseException:
            # In a lost context this fails as well, and what failed first tells more.
            with suppress(CudaError):
                self.call("cuCtxPopCurrent_v2", popped)
            raise
        self.call("cuCtxPopCurrent_v2", popped)

    def _context(self, device_id: int) -> ctypes.c_void_p:
        with self._lock:
            context = self._contexts.get(device_id)
            if context is None:
                if not 0 <= device_id < 1 << 31:
                    raise CudaError(f"there is no device {device_id}")
                device, context = ctypes.c_int(), ctypes.c_void_p()
                self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_id))
                self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
                self._contexts[device_id] = context
        return context

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Most need a current context: call them inside `on`. Raises CudaError."""
        status = self._library[name](*arguments)
        if status:
            raise CudaError(f"{name} failed with CUDA error {status}", status)


# An empty tensor needs an address as well.
_LEAST = 256


class DeviceBlock:
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
            # Also if that fails, because there is no second try.
            self._size = 0
            self._driver.call("cuMemFree_v2", self._address)


class PinnedBuffers:
    """Pins the staging buffers of one instance where they are. The instance's thread only.

    A buffer that cannot be pinned is used as it is; copies from it are slower.
    """

    def __init__(self, driver: CudaDriver, device_id: int) -> None:
        self._driver = driver
        self._device_id = device_id
        self._pinned: dict[str, Array] = {}

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
        arguments = ctypes.c_uint64(address), ctypes.c_void_p(host), ctypes.c_size_t(size)
        self._driver.call("cuMemcpyHtoDAsync_v2", *arguments, self._stream)

    def copy_to_host(self, host: int, address: int, size: int) -> None:
        """Begin to copy `size` bytes to the address `host`; they are there when `wait` returns."""
        arguments = ctypes.c_void_p(host), ctypes.c_uint64(address), ctypes.c_size_t(size)
        self._driver.call("cuMemcpyDtoHAsync_v2", *arguments, self._stream)

    def wait(self) -> None:
        """Block until all that was begun is done. Other threads of the interpreter run meanwhile."""
        self._driver.call("cuEventRecord", self._event, self._stream)
        self._driver.call("cuEventSynchronize", self._event)

    def close(self) -> None:
        self._driver.call("cuEventDestroy_v2", self._event)
        self._driver.call("cuStreamDestroy_v2", self._stream)


# --- which driver a version of CUDA needs
#
# Source: NVIDIA's CUDA Toolkit release notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
# Version Compatibility", for Linux: libraries of any 12.x run on a driver of 12.0.


# By CUDA's major version.
LEAST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
OLD_DRIVER_CURE = (
    "use a machine with a newer driver; in place of CUDA 13 the image with CUDA 12 (docker build --build-arg CUDA=12; "
    "with pip: the extra 'gpu12'); see docs/gpu.md"
)


def old_driver(needed: str, driver: str, supported: str) -> str:
    """Return why libraries of the CUDA version `needed`, such as "13.0", do not run on a driver; "" if they do.

    `supported` is the newest version of CUDA that the driver supports, with the libraries of a forward compatibility
    package if there is one. Unknown versions are not judged.
    """
    major, newest = needed.partition(".")[0], supported.partition(".")[0]
    if not major.isdecimal() or not newest.isdecimal() or int(newest) >= int(major):
        return ""
    least = LEAST_DRIVERS.get(int(major))
    needs = f"{least} or later" if least else "a newer one"
    return f"driver {driver} is too old for CUDA {major}: it supports CUDA {supported}, and {needs} is needed"
