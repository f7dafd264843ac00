"""The readings of the machine's processors and memory, from /proc.

Source: docs/spec/statistics-and-metrics.md section B (nv_cpu_*); proc(5).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from core.observability.hardware.meminfo import memory_bytes

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
