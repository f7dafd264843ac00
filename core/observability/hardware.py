"""The gauges of the machine: processors and memory from /proc, GPUs from NVML, the pinned memory pool.

They are read by a thread of their own at a fixed pace, not when the page is asked for: a utilization is a difference
between two readings, and scrapes may come at any distance, from several scrapers at once.
Source: docs/spec/statistics-and-metrics.md section B (nv_cpu_*, nv_pinned_memory_pool_*, "Poll thread").
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.observability.gpu import GpuMeter, GpuReading

_log = logging.getLogger("trident.observability")

# Below this the thread would do nothing but read, whatever the interval says.
_SHORTEST_PERIOD_S = 0.001
_CLOSE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReading:
    """`utilization` is from 0 to 1 over all processors, since the reading before. Memory in bytes."""

    utilization: float
    memory_total: int
    memory_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedMemory:
    """The pinned memory pool, in bytes; both 0 where there is none."""

    total: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareReading:
    """All gauges of one moment. `cpu` is None where it is not wanted or /proc is not there."""

    cpu: CpuReading | None = None
    gpus: tuple[GpuReading, ...] = ()
    pinned: PinnedMemory = field(default_factory=PinnedMemory)


class CpuMeter:
    """Reads `stat` and `meminfo` as Linux writes them. One thread at a time.

    In a container both are the host's, as on Triton's page.
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
        """None, with one warning in the log, where the files cannot be read. The first utilization is 0."""
        try:
            busy, total = cpu_ticks(self._stat.read_text())
            memory_total, memory_used = memory_bytes(self._meminfo.read_text())
        except (OSError, ValueError) as error:
            if not self._warned:
                _log.warning("no CPU metrics: %s", error)
            self._warned = True
            return None
        if total > self._total and not self._first:
            # Some counters of the kernel may step back (iowait, steal), so the difference is bounded.
            self._utilization = min(1.0, max(0.0, (busy - self._busy) / (total - self._total)))
        self._busy, self._total, self._first = busy, total, False
        return CpuReading(utilization=self._utilization, memory_total=memory_total, memory_used=memory_used)


class HardwareGauges:
    """Polls at half of the metrics interval on one native daemon thread, from `start` to `close`.

    `start` belongs in the process that serves: neither threads nor NVML sessions outlive a fork. `reading` may be taken
    on any thread, at any time; it does not block.
    """

    def __init__(
        self,
        *,
        interval_ms: float,
        cpu: CpuMeter | None = None,
        open_gpu: Callable[[], GpuMeter | None] | None = None,
        pinned: Callable[[], PinnedMemory] = PinnedMemory,
    ) -> None:
        """`open_gpu` is called on the thread, because opening NVML can take seconds; None: no GPU gauges."""
        self._period_s = max(interval_ms / 2000, _SHORTEST_PERIOD_S)
        self._cpu = cpu
        self._open_gpu = open_gpu
        self._pinned = pinned
        self._reading = HardwareReading()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware-gauges", daemon=True)

    @property
    def reading(self) -> HardwareReading:
        """The latest values; none before `start`."""
        return self._reading

    def start(self) -> None:
        """Once. The CPU and pinned memory gauges are there when it returns, those of GPUs a little later."""
        self._reading = HardwareReading(cpu=self._read_cpu(), pinned=self._pinned())
        self._thread.start()

    def close(self) -> None:
        """Ends the thread at once, but for a reading under way; may be called more than once, or without a start."""
        self._closing.set()
        if self._thread.is_alive():
            # A lost GPU can hold a call to NVML for long; the thread is a daemon, so the stop need not wait for it.
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


def cpu_ticks(stat: str) -> tuple[int, int]:
    """Busy and total clock ticks since boot, of all processors, from the text of /proc/stat.

    Steal is busy, iowait idle; guest time is part of user time and not added again. Raises ValueError.
    """
    words = stat.partition("\n")[0].split()
    if len(words) < 5 or words[0] != "cpu":
        raise ValueError("/proc/stat does not begin with the processors' times")
    ticks = [int(word) for word in words[1:9]]
    total = sum(ticks)
    idle = sum(ticks[3:5])
    return total - idle, total


def memory_bytes(meminfo: str) -> tuple[int, int]:
    """Total and used bytes from the text of /proc/meminfo; used is what is not available. Raises ValueError."""
    kilobytes = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    try:
        total, available = (int(kilobytes[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, IndexError) as error:
        raise ValueError(f"/proc/meminfo has no {error}") from error
    return total, total - available
