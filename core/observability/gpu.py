"""NVIDIA GPUs as the driver's management library (NVML) sees them: UUID, load, memory, power and energy.

NVML comes with the driver as `libnvidia-ml.so.1` and is called through ctypes: it needs no package, and no CUDA
context, which would take memory on every GPU. Where the library is missing there is nothing to show; that is no error.
Source: docs/spec/statistics-and-metrics.md section B (nv_gpu_*, nv_energy_consumption); NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

_log = logging.getLogger("trident.observability")

FAILURES_AT_MOST = 3

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96
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

Value = TypeVar("Value")


class NvmlLibrary(Protocol):
    """The library's functions by name: they take ctypes values and return NVML's code, 0 for success."""

    def __getattr__(self, name: str, /) -> Callable[..., int]: ...


class NvmlError(Exception):
    """A function of NVML returned something else than success. It does not leave this module."""

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
    """One GPU. `uuid` is NVML's `GPU-...`, "" where NVML may not look at it; `handle` is valid in this process only."""

    uuid: str
    handle: ctypes.c_void_p


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What one GPU reported last. None: the field could not be read. `utilization` is from 0 to 1.

    Memory in bytes, power in watts, `energy` in joules since the first reading.
    """

    uuid: str
    utilization: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    power_usage: float | None = None
    power_limit: float | None = None
    energy: float | None = None


class Nvml:
    """An open session with NVML. Thread-safe, as the library is. Every method but `close` raises NvmlError."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._call("nvmlInit_v2")

    def close(self) -> None:
        """A failure is of no interest: there is nothing left to do with the session."""
        self._library.nvmlShutdown()

    def gpus(self) -> list[Gpu]:
        """All GPUs of this machine or container, in the order of their PCI buses."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

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


class GpuMeter:
    """Reads the fields of its GPUs. One thread at a time; `close` ends the session with NVML.

    A field of a GPU that fails FAILURES_AT_MOST times in a row is not asked for again: it is not supported there, or
    not permitted, and each try may cost the driver time.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        self._nvml = nvml
        self._gpus = tuple(gpus)
        self._failures: Counter[tuple[str, str]] = Counter()
        self._energy_zero: dict[str, float] = {}

    @classmethod
    def open(cls, visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> GpuMeter | None:
        """A meter of the GPUs in `visible` (see `visible_gpus`), or None, with a line in the log, where NVML is not."""
        try:
            nvml, gpus = _open(visible, load)
        except OSError as error:
            _log.info("no GPU metrics: %s", error)
            return None
        except NvmlError as error:
            _log.warning("no GPU metrics: %s", error)
            return None
        return cls(nvml, [gpu for gpu in gpus if gpu.uuid])

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(self._read(gpu) for gpu in self._gpus)

    def close(self) -> None:
        self._nvml.close()

    def _read(self, gpu: Gpu) -> GpuReading:
        memory_total, memory_used = self._field(gpu, "memory", self._nvml.memory) or (None, None)
        energy = self._field(gpu, "energy consumption", self._nvml.energy)
        if energy is not None:
            energy -= self._energy_zero.setdefault(gpu.uuid, energy)
        return GpuReading(
            uuid=gpu.uuid,
            utilization=self._field(gpu, "utilization", self._nvml.utilization),
            memory_total=memory_total,
            memory_used=memory_used,
            power_usage=self._field(gpu, "power usage", self._nvml.power_usage),
            power_limit=self._field(gpu, "power limit", self._nvml.power_limit),
            energy=energy,
        )

    def _field(self, gpu: Gpu, name: str, read: Callable[[Gpu], Value]) -> Value | None:
        key = gpu.uuid, name
        if self._failures[key] >= FAILURES_AT_MOST:
            return None
        try:
            value = read(gpu)
        except NvmlError as error:
            self._failures[key] += 1
            if self._failures[key] == FAILURES_AT_MOST:
                _log.warning("%s of %s is not read any more: %s", name, gpu.uuid, error)
            return None
        self._failures[key] = 0
        return value


def load_library() -> NvmlLibrary:
    """The driver's NVML. Raises OSError where there is none."""
    return ctypes.CDLL(_LIBRARY)


def gpu_uuids(visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> tuple[str, ...]:
    """The UUIDs of the GPUs in `visible`, by CUDA's device number; "" for one that NVML may not look at.

    Empty where NVML is not. The numbers agree with CUDA's if the GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    try:
        nvml, gpus = _open(visible, load)
    except (OSError, NvmlError):
        return ()
    nvml.close()
    return tuple(gpu.uuid for gpu in gpus)


def gpu_memory(
    visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None
) -> tuple[tuple[int, int] | None, ...]:
    """Total and used bytes of the GPUs in `visible`, by CUDA's device number as `gpu_uuids`; None for one that does not
    tell. Empty where NVML is not. Blocks, the first time perhaps for seconds.
    """
    try:
        nvml, gpus = _open(visible, load)
    except (OSError, NvmlError):
        return ()
    try:
        return tuple(_memory_or_none(nvml, gpu) for gpu in gpus)
    finally:
        nvml.close()


def _memory_or_none(nvml: Nvml, gpu: Gpu) -> tuple[int, int] | None:
    try:
        return nvml.memory(gpu)
    except NvmlError:
        return None


def _open(visible: str | None, load: Callable[[], NvmlLibrary] | None) -> tuple[Nvml, list[Gpu]]:
    """A session and the visible GPUs. Raises OSError without the library, NvmlError where it does not work."""
    nvml = Nvml((load or load_library)())
    try:
        return nvml, visible_gpus(nvml.gpus(), visible)
    except NvmlError:
        nvml.close()
        raise


def visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES names, in its order; None means all, as if it were not set.

    Numbers and beginnings of UUIDs; as in CUDA, the list ends at the first entry that names no GPU, or not one alone.
    """
    if visible is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            found = list(gpus[int(entry) : int(entry) + 1])
        else:
            found = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(found) != 1:
            break
        chosen += found
    return chosen
