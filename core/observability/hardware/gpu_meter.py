"""The readings of GPUs: utilization, memory, power and energy.

Source: docs/spec/statistics-and-metrics.md section B (nv_gpu_*, nv_energy_consumption).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from core.observability.hardware.nvml import Gpu, Nvml, NvmlError, NvmlLibrary
from core.observability.hardware.visible_gpus import open_visible

_log = logging.getLogger("trident.observability")

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

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        self._nvml = nvml
        self._gpus = tuple(gpus)
        self._failures: Counter[tuple[str, str]] = Counter()
        self._energy_zero: dict[str, float] = {}

    @classmethod
    def open(cls, visible: str | None = None, load: Callable[[], NvmlLibrary] | None = None) -> GpuMeter | None:
        """A meter of the GPUs in `visible` (see `visible_gpus`); None, with a log line, if NVML is missing or fails."""
        try:
            nvml, gpus = open_visible(visible, load)
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
