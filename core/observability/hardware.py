"""The gauges of the machine: processors, memory, GPUs (by NVML).

One thread reads them at a fixed pace, not each request for the page: a utilization is a difference between two
readings, and several scrapers may ask at any distance.
Source: docs/spec/statistics-and-metrics.md section B (nv_cpu_*, "Poll thread").
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar


def memory_bytes(meminfo: str) -> tuple[int, int]:
    """Total and used bytes from the text of /proc/meminfo; used is total less available. Raises ValueError."""
    kilobytes = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    try:
        total, available = (int(kilobytes[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, IndexError) as error:
        raise ValueError(f"/proc/meminfo has no {error}") from error
    return total, total - available


# Source: Linux `cgroup-v2` and `cgroup-v1` documentation; cgroups(7) for /proc/self/cgroup.


ROOT = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")


def cgroup_folders(controller: str, *mounts: str, root: Path = ROOT, memberships: Path = MEMBERSHIPS) -> Iterator[Path]:
    """The folders that may hold a limit of the controller; they need not exist.

    `mounts` are the names under `root` at which version 1 may mount the controller. `memberships` is the file that
    names the process's cgroups. In a container with its own cgroup namespace the path there is "/". Without one it is
    the host's path, which may not be visible; then the root is the container's cgroup. So the root is always included.
    """
    for line in text_of(memberships).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in [root / name for name in mounts] if controllers else [root]:
            for depth in range(len(parts) + 1):
                yield mount.joinpath(*parts[:depth])


def text_of(path: Path) -> str:
    """The text of a kernel file, stripped; empty if the file does not exist or cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# Source: docs/spec/statistics-and-metrics.md section B (nv_cpu_*); proc(5).


_log = logging.getLogger("trident.observability")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReading:
    """`utilization` is from 0 to 1, over all processors and since the previous reading. Memory in bytes."""

    utilization: float
    memory_total: int
    memory_used: int


class CpuMeter:
    """Reads the files `stat` and `meminfo` of Linux. One thread at a time.

    In a container both show the host, as on Triton's page.
    """

    def __init__(self, stat: Path = Path("/proc/stat"), meminfo: Path = Path("/proc/meminfo")) -> None:
        self._stat = stat
        self._meminfo = meminfo
        self._busy = 0
        self._total = 0
        self._utilization = 0.0
        self._warned = False
        self._first = True

    def read(self) -> CpuReading | None:
        """None, with one warning in the log, if the files cannot be read. The first utilization is 0."""
        try:
            busy, total = cpu_ticks(self._stat.read_text())
            memory_total, memory_used = memory_bytes(self._meminfo.read_text())
        except (OSError, ValueError) as error:
            if not self._warned:
                _log.warning("no CPU metrics: %s", error)
            self._warned = True
            return None
        if total > self._total and not self._first:
            # Some counters of the kernel (iowait, steal) may decrease, so the quotient is bounded.
            self._utilization = min(1.0, max(0.0, (busy - self._busy) / (total - self._total)))
        self._busy, self._total, self._first = busy, total, False
        return CpuReading(utilization=self._utilization, memory_total=memory_total, memory_used=memory_used)


def cpu_ticks(stat: str) -> tuple[int, int]:
    """Busy and total clock ticks of all processors since boot, from the text of /proc/stat. Raises ValueError.

    Steal counts as busy and iowait as idle. Guest time is part of user time and is not added again.
    """
    words = stat.partition("\n")[0].split()
    if len(words) < 5 or words[0] != "cpu":
        raise ValueError("/proc/stat does not begin with the processors' times")
    ticks = [int(word) for word in words[1:9]]
    total = sum(ticks)
    idle = sum(ticks[3:5])
    return total - idle, total


# The machine's figures alone are wrong in a container: the kernel kills a process that exceeds its cgroup's limit,
# even if the machine has free memory. Source: Linux `cgroup-v2` (memory.max, memory.current, memory.stat) and
# `cgroup-v1` memory (memory.limit_in_bytes, memory.usage_in_bytes, memory.stat) documentation; proc(5).


# Opened once: each CDLL is a reference cycle that stays until the garbage collector runs.
_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class MemoryState:
    """`total` is the limit and `free` the unused part of it, in bytes."""

    total: int
    free: int


def host_memory(
    cgroup_root: Path = ROOT,
    memberships: Path = MEMBERSHIPS,
    meminfo: Path = Path("/proc/meminfo"),
) -> MemoryState | None:
    """The memory that this process may still allocate before the kernel kills it; None if the system does not tell.

    It is the smallest of the machine's available memory and what is free in the process's cgroup and its ancestors.
    """
    folders = cgroup_folders("memory", "memory", root=cgroup_root, memberships=memberships)
    states = [state for folder in folders if (state := _cgroup_memory(folder)) is not None]
    try:
        total, used = memory_bytes(text_of(meminfo))
        states.append(MemoryState(total, total - used))
    except ValueError:  # no Linux, or the file is hidden
        pass
    return min(states, key=lambda state: state.free, default=None)


def resident_bytes(process: int | str = "self", proc: Path = Path("/proc")) -> int:
    """The resident memory of a process, by default of this one, in bytes; 0 if the system does not tell."""
    fields = text_of(proc / str(process) / "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") if len(fields) > 1 else 0


def trim_heap() -> None:
    """Return freed memory to the system, if the C library can. Takes milliseconds; allocations wait."""
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)


def _cgroup_memory(folder: Path) -> MemoryState | None:
    """The memory of one cgroup; None if it has no limit or does not exist.

    The usage includes inactive file pages, which the kernel reclaims before it kills.
    """
    names = "memory.max", "memory.current", "inactive_file"
    if not (folder / names[0]).exists():
        names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    limit = text_of(folder / names[0])
    if not limit.isdigit():  # "max", or an empty text: the other files take longer to read
        return None
    stat = dict(line.split() for line in text_of(folder / "memory.stat").splitlines() if len(line.split()) == 2)
    try:
        total, used, reclaimable = int(limit), int(text_of(folder / names[1])), int(stat.get(names[2], 0))
    except ValueError:
        return None
    return MemoryState(total, max(0, total - max(0, used - reclaimable)))


# NVML, the management library, comes with NVIDIA's driver. Through ctypes it needs no package, and no CUDA context,
# which would take memory on every GPU. Source: NVIDIA's NVML API reference.


_NVML = "libnvidia-ml.so.1"
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
    """A function of NVML failed. Never raised outside of this package."""

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

    visible: list[Gpu]

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
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            uuid = ctypes.create_string_buffer(_UUID_BYTES)
            try:
                self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
                self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_UUID_BYTES))
            except NvmlError as error:
                _log.warning("no metrics for GPU %d: %s", index, error)
            found.append(Gpu(uuid.value.decode(), handle))
        return found

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

    def watts(self, function: str, gpu: Gpu) -> float:
        value = ctypes.c_uint()  # milliwatts
        self._call(function, gpu.handle, ctypes.byref(value))
        return value.value / 1000

    def energy(self, gpu: Gpu) -> float:
        """Joules since the driver was loaded."""
        value = ctypes.c_ulonglong()  # millijoules
        self._call("nvmlDeviceGetTotalEnergyConsumption", gpu.handle, ctypes.byref(value))
        return value.value / 1000

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name, None)
        code = _FUNCTION_NOT_FOUND if function is None else function(*arguments)
        if code != 0:
            raise NvmlError(name, code)


_MIG = "MIG-"


def visible_gpus(
    gpus: Sequence[Gpu], visible: str | None, find: Callable[[str], Gpu | None] = lambda uuid: None
) -> list[Gpu]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES names, in its order; None: the variable is not set, so all.

    Entries are numbers, prefixes of UUIDs, and names of instances of a GPU (MIG), for which `find` is asked. As in
    CUDA, the list ends at the first entry that does not name exactly one.
    """
    if visible is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            found = list(gpus[int(entry) : int(entry) + 1])
        elif entry.startswith(_MIG):
            instance = find(entry)
            found = [instance] if instance is not None else []
        else:
            found = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(found) != 1:
            break
        chosen += found
    return chosen


@dataclass(frozen=True, slots=True)
class DriverReading:
    """NVIDIA's driver: its version, the newest CUDA version that it supports, and the total bytes of each visible GPU.

    The bytes of a GPU that does not report them are 0.
    """

    version: str
    cuda: str
    gpu_bytes: tuple[int, ...]


def read_driver(visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> DriverReading | str:
    """The driver and the GPUs in `visible`, or the reason why they cannot be read. May block for seconds."""
    try:
        with closing(open_nvml(visible, load)) as nvml:
            memory = [_memory_or_none(nvml, gpu) for gpu in nvml.visible]
            return DriverReading(nvml.driver_version(), nvml.cuda_version(), tuple(m[0] if m else 0 for m in memory))
    except (OSError, NvmlError) as error:
        return str(error)


def open_nvml(visible: str | None, load: Callable[[], NvmlLibrary] | None) -> Nvml:
    """A session, with the visible GPUs. Raises OSError without the library, NvmlError if the library fails."""
    nvml = Nvml(load() if load is not None else ctypes.CDLL(_NVML))
    try:
        nvml.visible = visible_gpus(nvml.gpus(), visible, nvml.named)
    except NvmlError:
        nvml.close()
        raise
    return nvml


def gpu_uuids(visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> tuple[str, ...]:
    """The UUIDs of the GPUs in `visible`, by CUDA's device number; "" for a GPU that NVML may not read.

    Empty without NVML. The numbers agree with CUDA's if the GPUs are of one type or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    with suppress(OSError, NvmlError), closing(open_nvml(visible, load)) as nvml:
        return tuple(gpu.uuid for gpu in nvml.visible)
    return ()


def gpu_memory(
    visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None
) -> tuple[tuple[int, int] | None, ...]:
    """Total and used bytes of the GPUs in `visible`, by CUDA's device number as in `gpu_uuids`.

    None for a GPU that does not report them. Empty without NVML. The first call may block for seconds.
    """
    with suppress(OSError, NvmlError), closing(open_nvml(visible, load)) as nvml:
        return tuple(_memory_or_none(nvml, gpu) for gpu in nvml.visible)
    return ()


def _memory_or_none(nvml: Nvml, gpu: Gpu) -> tuple[int, int] | None:
    try:
        return nvml.memory(gpu)
    except NvmlError:
        return None


# Source: docs/spec/statistics-and-metrics.md section B (nv_gpu_*, nv_energy_consumption).


MAX_FAILURES = 3
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """The latest values of one GPU; None for a field that could not be read.

    `utilization` is from 0 to 1, memory in bytes, power in watts, `energy` in joules since the first reading.
    """

    uuid: str
    utilization: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    power_usage: float | None = None
    power_limit: float | None = None
    energy: float | None = None


class GpuMeter:
    """Reads the fields of its GPUs. One thread at a time; `close` ends the session with NVML.

    A field that fails MAX_FAILURES times in a row is not read again: the GPU does not support it or permission is
    missing, and each attempt may cost the driver time.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._gpus = [gpu for gpu in nvml.visible if gpu.uuid]
        self._failures: Counter[tuple[str, str]] = Counter()
        self._energy_zero: dict[str, float] = {}

    @classmethod
    def open(cls, visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> GpuMeter | None:
        """A meter of the GPUs in `visible` (see `visible_gpus`); None, with a log line, if NVML is missing or fails."""
        try:
            nvml = open_nvml(visible, load)
        except OSError as error:
            _log.info("no GPU metrics: %s", error)
            return None
        except NvmlError as error:
            _log.warning("no GPU metrics: %s", error)
            return None
        return cls(nvml)

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
            power_usage=self._field(gpu, "power usage", partial(self._nvml.watts, "nvmlDeviceGetPowerUsage")),
            power_limit=self._field(gpu, "power limit", partial(self._nvml.watts, "nvmlDeviceGetPowerManagementLimit")),
            energy=energy,
        )

    def _field(self, gpu: Gpu, name: str, read: Callable[[Gpu], Value]) -> Value | None:
        key = gpu.uuid, name
        if self._failures[key] >= MAX_FAILURES:
            return None
        try:
            value = read(gpu)
        except NvmlError as error:
            self._failures[key] += 1
            if self._failures[key] == MAX_FAILURES:
                _log.warning("%s of %s is no longer read: %s", name, gpu.uuid, error)
            return None
        self._failures[key] = 0
        return value


# A shorter period would keep the thread busy with reading alone.
_MIN_PERIOD_S = 0.001
_CLOSE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareReading:
    """All gauges at one moment. `cpu` is None if it is switched off or /proc cannot be read."""

    cpu: CpuReading | None = None
    gpus: tuple[GpuReading, ...] = ()


class HardwareGauges:
    """Polls at half the metrics interval on one native daemon thread, from `start` to `close`.

    Call `start` in the process that serves: neither threads nor NVML sessions survive a fork. `reading` may be used on
    any thread at any time; it does not block.
    """

    def __init__(
        self,
        *,
        interval_ms: float,
        cpu: CpuMeter | None = None,
        open_gpu: Callable[[], GpuMeter | None] | None = None,
    ) -> None:
        """`open_gpu` is called on the thread, because NVML can take seconds to open; None: no GPU gauges."""
        self._period_s = max(interval_ms / 2000, _MIN_PERIOD_S)
        self._cpu = cpu
        self._open_gpu = open_gpu
        # The latest values; empty before `start`.
        self.reading = HardwareReading()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware-gauges", daemon=True)

    def start(self) -> None:
        """Start the thread; once only. The CPU has values when it returns, GPUs a little later."""
        self.reading = HardwareReading(cpu=self._read_cpu())
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current reading. May be called more than once, and without a start."""
        self._closing.set()
        if self._thread.is_alive():
            # A lost GPU can block a call to NVML for long. The thread is a daemon, so the process can end without it.
            self._thread.join(_CLOSE_WITHIN_S)

    def _run(self) -> None:
        gpu = self._open_gpu() if self._open_gpu is not None else None
        try:
            if gpu is not None:
                self.reading = replace(self.reading, gpus=gpu.read())
            while not self._closing.wait(self._period_s):
                self.reading = HardwareReading(cpu=self._read_cpu(), gpus=gpu.read() if gpu is not None else ())
        finally:
            if gpu is not None:
                gpu.close()

    def _read_cpu(self) -> CpuReading | None:
        return self._cpu.read() if self._cpu is not None else None
