"""The gauges of the machine: processors, memory, GPUs, the pinned memory pool.

One thread reads them at a fixed pace, not each request for the page: a utilization is a difference between two
readings, and several scrapers may ask at any distance.
Source: docs/spec/statistics-and-metrics.md section B (nv_cpu_*, nv_pinned_memory_pool_*, "Poll thread").
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from core.observability.hardware.cpu_meter import CpuMeter, CpuReading
from core.observability.hardware.gpu_meter import GpuMeter, GpuReading

# A shorter period would keep the thread busy with reading alone.
_MIN_PERIOD_S = 0.001
_CLOSE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedMemory:
    """The pinned memory pool in bytes; both are 0 without a pool."""

    total: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareReading:
    """All gauges at one moment. `cpu` is None if it is switched off or /proc cannot be read."""

    cpu: CpuReading | None = None
    gpus: tuple[GpuReading, ...] = ()
    pinned: PinnedMemory = field(default_factory=PinnedMemory)


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
        pinned: Callable[[], PinnedMemory] = PinnedMemory,
    ) -> None:
        """`open_gpu` is called on the thread, because NVML can take seconds to open; None: no GPU gauges."""
        self._period_s = max(interval_ms / 2000, _MIN_PERIOD_S)
        self._cpu = cpu
        self._open_gpu = open_gpu
        self._pinned = pinned
        self._reading = HardwareReading()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware-gauges", daemon=True)

    @property
    def reading(self) -> HardwareReading:
        """The latest values; empty before `start`."""
        return self._reading

    def start(self) -> None:
        """Start the thread; once only. CPU and pinned memory have values when it returns, GPUs a little later."""
        self._reading = HardwareReading(cpu=self._read_cpu(), pinned=self._pinned())
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
                self._reading = replace(self._reading, gpus=gpu.read())
            while not self._closing.wait(self._period_s):
                self._reading = HardwareReading(
                    cpu=self._read_cpu(), gpus=gpu.read() if gpu is not None else (), pinned=self._pinned()
                )
        finally:
            if gpu is not None:
                gpu.close()

    def _read_cpu(self) -> CpuReading | None:
        return self._cpu.read() if self._cpu is not None else None
