"""The machine and the software that the figures were measured with."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("trident-inference", "onnxruntime", "numpy", "gevent", "gunicorn", "flask", "orjson", "pysimdjson")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()


def today() -> str:
    return datetime.date.today().isoformat()


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def core_seconds() -> tuple[float, float]:
    """CPU seconds of the cores that this process may use, since the start of the machine: worked, and stolen.

    Stolen time is what a hypervisor gave to other machines while a core had work to do.
    """
    worked = stolen = 0
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name in usable:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, columns[:8])
            worked += user + nice + system + irq + softirq
            stolen += steal
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    return worked / ticks_per_second, stolen / ticks_per_second


def describe() -> dict[str, object]:
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in PACKAGES if name in installed},
    }


def sentence() -> str:
    """The day and the machine, for a page."""
    return f"{today()}, {cpu_model()}, {cores()} cores, load average {os.getloadavg()[0]:.1f}"


def slug() -> str:
    """The CPU as part of a file name: `intel-r-xeon-r-processor-2-50ghz-2-cores`."""
    return re.sub(r"[^a-z0-9]+", "-", f"{cpu_model()} {cores()} cores".lower()).strip("-")


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# The machine counts as crowded above these shares of the CPU time of the usable cores. A quiet machine with a desktop
# or an agent of a cloud on it stays below a tenth; ratios begin to move when others take more.
OTHERS_LIMIT = 0.10
STOLEN_LIMIT = 0.05
# The load average lags: what it says is given for information, and only a look at the cores decides.
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Shares, 0 to 1, of the CPU time of all usable cores, and the load average."""

    others: float
    stolen: float
    load_average: float

    @property
    def crowded(self) -> bool:
        return self.others > OTHERS_LIMIT or self.stolen > STOLEN_LIMIT

    def text(self) -> str:
        return (
            f"other processes took {self.others:.0%} of the CPU time, {self.stolen:.0%} was stolen by the hypervisor; "
            f"load average at the beginning {self.load_average:.2f}"
        )


class LoadWatch:
    """Watches the machine from its creation on."""

    def __init__(self) -> None:
        self._load_average = os.getloadavg()[0]
        self._cores = len(os.sched_getaffinity(0))
        self._began = time.perf_counter()
        self._worked_s, self._stolen_s = core_seconds()
        self._own_s = tree_seconds(os.getpid())

    def load(self) -> MachineLoad:
        """The shares since the creation."""
        worked_s, stolen_s = core_seconds()
        available_s = (time.perf_counter() - self._began) * self._cores
        own_s = tree_seconds(os.getpid()) - self._own_s
        others_s = worked_s - self._worked_s - own_s
        return MachineLoad(
            others=max(0.0, others_s) / available_s,
            stolen=(stolen_s - self._stolen_s) / available_s,
            load_average=self._load_average,
        )


def look() -> MachineLoad:
    """Watch for two seconds while the benchmark itself does nothing."""
    watch = LoadWatch()
    time.sleep(LOOK_S)
    return watch.load()


def tree_seconds(root: int) -> float:
    """User and system time of a process, of its living descendants, and of the dead ones that were waited for."""
    return sum(_tree_ticks(root).values()) / TICKS_PER_SECOND


def cpu_seconds(processes: Iterable[int]) -> float:
    """User and system time so far of those processes that live, to the nanosecond."""
    found = 0.0
    for process in processes:
        with contextlib.suppress(OSError):
            # The clock of another process's CPU time, as clock_getcpuclockid(3) computes it on Linux.
            found += time.clock_gettime(~process << 3 | 2)
    return found


def tree_members(root: int) -> set[int]:
    """A process and its living descendants."""
    return set(_tree_ticks(root))


def _tree_ticks(root: int) -> dict[int, int]:
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        ticks[process] = sum(map(int, fields[11:15]))
    return {process: ticks[process] for process in parents if _descends(process, root, parents)}


def _descends(process: int, root: int, parents: dict[int, int]) -> bool:
    while process in parents:
        if process == root:
            return True
        process = parents[process]
    return False
