"""NVML, the management library of NVIDIA's driver, through ctypes.

NVML comes with the driver as `libnvidia-ml.so.1`. Through ctypes it needs no package, and no CUDA context, which would
take memory on every GPU. Source: NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_log = logging.getLogger("trident.observability")

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96
_VERSION_BYTES = 80
_FUNCTION_NOT_FOUND = 13
_CODES = {
    1: "not initialized",
    3: "not supported",
    4: "no permission",
    9: "driver not loaded",
    _FUNCTION_NOT_FOUND: "function not found",
    15: "GPU is lost",
    18: "driver and library versions differ",
    999: "unknown error",
}


class NvmlLibrary(Protocol):
    """The library's functions by name. They take ctypes values and return NVML's code, 0 for success."""

    def __getattr__(self, name: str, /) -> Callable[..., int]: ...


class NvmlError(Exception):
    """A function of NVML failed. It does not leave this package."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {_CODES.get(code, 'error')} ({code})")


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t, in percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `uuid` is NVML's `GPU-...`, "" without permission to read it; `handle` is valid in this process only."""

    uuid: str
    handle: ctypes.c_void_p


class Nvml:
    """An open session with NVML. Thread-safe, as the library is. Every method except `close` raises NvmlError."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._call("nvmlInit_v2")

    def close(self) -> None:
        """End the session. A failure is ignored: nothing else can be done with the session."""
        self._library.nvmlShutdown()

    def gpus(self) -> list[Gpu]:
        """All GPUs of this machine or container, in PCI bus order."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def named(self, uuid: str) -> Gpu | None:
        """The GPU, or the instance of one (MIG), with this whole UUID; None if there is none."""
        handle = ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
        except NvmlError:
            return None
        return Gpu(uuid, handle)

    def driver_version(self) -> str:
        """The version of the driver, such as `550.54.15`."""
        text = ctypes.create_string_buffer(_VERSION_BYTES)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(_VERSION_BYTES))
        return text.value.decode()

    def cuda_version(self) -> str:
        """The newest version of CUDA that the driver supports, such as `12.4`."""
        number = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def utilization(self, gpu: Gpu) -> float:
        value = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", gpu.handle, ctypes.byref(value))
        return int(value.gpu) / 100

    def memory(self, gpu: Gpu) -> tuple[int, int]:
        """Total and used bytes."""
        value = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", gpu.handle, ctypes.byref(value))
        return int(value.total), int(value.used)

    def power_usage(self, gpu: Gpu) -> float:
        return self._milli("nvmlDeviceGetPowerUsage", gpu, ctypes.c_uint())

    def power_limit(self, gpu: Gpu) -> float:
        return self._milli("nvmlDeviceGetPowerManagementLimit", gpu, ctypes.c_uint())

    def energy(self, gpu: Gpu) -> float:
        """Joules since the driver was loaded."""
        return self._milli("nvmlDeviceGetTotalEnergyConsumption", gpu, ctypes.c_ulonglong())

    def _milli(self, function: str, gpu: Gpu, value: ctypes.c_uint | ctypes.c_ulonglong) -> float:
        self._call(function, gpu.handle, ctypes.byref(value))
        return value.value / 1000

    def _gpu(self, index: int) -> Gpu:
        handle = ctypes.c_void_p()
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        try:
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_UUID_BYTES))
        except NvmlError as error:
            _log.warning("no metrics for GPU %d: %s", index, error)
        return Gpu(uuid.value.decode(), handle)

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name, None)
        code = _FUNCTION_NOT_FOUND if function is None else function(*arguments)
        if code != 0:
            raise NvmlError(name, code)


def load_library() -> NvmlLibrary:
    """The NVML of the installed driver. Raises OSError without one."""
    return ctypes.CDLL(_LIBRARY)
