"""How much of the machine's CPU time goes to processes that do not belong to the benchmark.

The benchmark's processes are this one and its descendants, the dead ones that were waited for included. Everything else
that kept a core busy is another process's, and time that the hypervisor gave to another machine is stolen.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench import machine

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# The machine counts as crowded above these shares of the CPU time of the usable cores. A quiet machine with a desktop
# or an agent of a cloud on it stays below a tenth; ratios begin to move when others take more.
OTHERS_LIMIT = 0.10
STOLEN_LIMIT = 0.05
# The load average lags: what it says is given for information, and only a look at the cores decides.
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class LoadSeen:
    """What a look at the machine saw: shares, 0 to 1, of the CPU time of all usable cores, and the load average."""

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
        self._worked_s, self._stolen_s = machine.core_seconds()
        self._own_s = tree_seconds(os.getpid())

    def seen(self) -> LoadSeen:
        """The shares since the creation."""
        worked_s, stolen_s = machine.core_seconds()
        room_s = (time.perf_counter() - self._began) * self._cores
        own_s = tree_seconds(os.getpid()) - self._own_s
        others_s = worked_s - self._worked_s - own_s
        return LoadSeen(
            others=max(0.0, others_s) / room_s,
            stolen=(stolen_s - self._stolen_s) / room_s,
            load_average=self._load_average,
        )


def look() -> LoadSeen:
    """Watch for two seconds while the benchmark itself does nothing."""
    watch = LoadWatch()
    time.sleep(LOOK_S)
    return watch.seen()


def tree_seconds(root: int) -> float:
    """User and system time of a process, of its living descendants, and of the dead ones that were waited for."""
    return sum(_tree_ticks(root).values()) / TICKS_PER_SECOND


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
