"""The cores that this container may use, and the threads that each session gets of them.

The host's number of cores is wrong inside a container: 16 threads that share a quota of 2 cores are throttled in every
period. Source: Linux documentation of `cgroup-v2` (cpu.max) and of bandwidth control (cpu.cfs_quota_us).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from trident.core.observability.hardware import MEMBERSHIPS, ROOT, cgroup_folders, text_of

T = TypeVar("T")

# A thread that spins while it waits occupies a core, which is affordable from this number of cores on.
SPINNING_FROM_CORES = 8
# With fewer cores the threads of a large model spin briefly: the next operator needs a thread within microseconds, and
# waking one takes as long. (A 50-layer ResNet with 2 threads on 2 virtual cores, serving 16 connections: compared with
# threads that sleep at once, an eighth more images a second with 100 µs of spinning, and a tenth more again with 1 ms.)
# A small model has finished by then, and the front end needs the core. (A digit classifier at 16 and 64 connections: 4
# and 5 % fewer requests/s if its threads spin.)
LARGE_MODEL_BYTES = 1 << 20
# The fewest threads that a session is planned, given as many cores. On 2 cores, one core for the front end would halve
# the speed of a compute-bound model (11.9 images a second with 1 thread, 22.5 with 2), and the front end needs far less
# than a core meanwhile. Threads that do not spin cost nothing while their session is idle.
SHARE_AT_LEAST = 2


class Spinning(Enum):
    """Wait of a thread for the next operator."""

    FREELY = "spins until there is one"
    BRIEFLY = "spins for a millisecond"
    NEVER = "sleeps"


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """`intra_op_threads` is for each of the expected `sessions`. `spinning` tells whether threads always spin."""

    cores: float
    sessions: int
    intra_op_threads: int
    spinning: bool

    def __str__(self) -> str:
        spinning = ", spinning while they wait" if self.spinning else ""
        return (
            f"{_count(self.cores, 'core')}, {_count(self.sessions, 'session')}: "
            f"{_count(self.intra_op_threads, 'thread')} per session{spinning}"
        )


def _count(number: float, unit: str) -> str:
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"


def plan_threads(cores: float, sessions: int) -> ThreadPlan:
    """Divide `cores` among `sessions` (one for each model and device), and keep one core for the front end."""
    whole = max(1, int(cores))
    share = (whole - 1) // max(1, sessions)
    return ThreadPlan(cores, sessions, max(share, min(SHARE_AT_LEAST, whole)), may_spin(cores))


def may_spin(cores: float) -> bool:
    return cores >= SPINNING_FROM_CORES


def spinning_of(cores: float, model_bytes: int) -> Spinning:
    if may_spin(cores):
        return Spinning.FREELY
    return Spinning.BRIEFLY if model_bytes >= LARGE_MODEL_BYTES else Spinning.NEVER


_own_share = 0.0


def keep_to_share(processes: int) -> None:
    """From now on only this process's share of the cores counts as available: `processes` divide them evenly."""
    global _own_share
    _own_share = available_cores() / processes


def pin_to_share(index: int, processes: int) -> None:
    """Keep this process on its share of the processors: number `index` of `processes`.

    A new thread has the processors of the one that makes it, but libraries have made some already.
    """
    share = share_of(sorted(os.sched_getaffinity(0)), index, processes)
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), share)


def share_of(devices: Sequence[T], index: int, processes: int) -> Sequence[T]:
    """Neighbours among the devices, as they share caches and links; one that others share if there are too few."""
    if processes >= len(devices):
        return [devices[index % len(devices)]]
    start, end = (len(devices) * number // processes for number in (index, index + 1))
    return devices[start:end]


def available_cores(cgroup_root: Path = ROOT, memberships: Path = MEMBERSHIPS, affinity: int = 0) -> float:
    """The cores that this process may use, above 0: the least of its affinity and the quotas of its cgroups.

    The cgroups are the process's own and those above it. `memberships` is a file like /proc/self/cgroup. `affinity` 0
    asks the system. A process that keeps to its share has no more.
    """
    if _own_share:
        return _own_share
    allowed = affinity or len(os.sched_getaffinity(0))
    folders = cgroup_folders("cpu", "cpu", "cpu,cpuacct", root=cgroup_root, memberships=memberships)
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    return min([float(allowed), *quotas])


def _quota(folder: Path) -> float | None:
    """The quota of one cgroup in cores; None without a limit or without such a file."""
    fields = text_of(folder / "cpu.max").split()
    if not fields:
        fields = [text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")]
    try:
        quota, period = (int(field) for field in fields)
    except ValueError:  # "max", or nothing
        return None
    return quota / period if quota > 0 and period > 0 else None
