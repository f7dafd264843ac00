"""How many cores this container may use, and how many threads each session gets of them.

The host's core count is wrong inside a container: 16 threads that share a quota of 2 cores are throttled in every
period. Source: Linux `cgroup-v2` (cpu.max) and the scheduler's bandwidth control (cpu.cfs_quota_us) documentation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from core.observability.hardware.cgroup import MEMBERSHIPS, ROOT, cgroup_folders, text_of

# A thread that spins while it waits takes a core from somebody; with this many cores it can be spared.
SPINNING_FROM_CORES = 8
# With fewer, threads of a large model spin for a moment: between two operators one is needed again within microseconds,
# and to wake it takes as long (a 50-layer ResNet, 2 threads on 2 virtual cores, served to 16 connections: an eighth
# more images a second than where they sleep at once if they spin for 100 µs, and a tenth more again for 1 ms). Small
# models are done by then, and the front end wants the core (a digit classifier at 16 and 64 connections: 4 and 5 %
# fewer requests/s if its threads spin).
LARGE_MODEL_BYTES = 1 << 20
# No session is planned fewer threads than this, if there are as many cores. On 2 cores a share for the front end would
# take half of a compute-bound model's speed (11.9 images a second with 1 thread, 22.5 with 2), far more than a front
# end needs meanwhile; and threads that do not spin cost nothing while their session is idle.
SHARE_AT_LEAST = 2


class Spinning(Enum):
    """What a thread does that waits for the next operator, instead of sleeping at once."""

    FREELY = "spins until there is one"
    BRIEFLY = "spins for a millisecond"
    NEVER = "sleeps"


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """`cores` as found, `sessions` as expected; `intra_op_threads` for each session, and whether all of them spin."""

    cores: float
    sessions: int
    intra_op_threads: int
    spinning: bool

    def __str__(self) -> str:
        """The plan as the start prints it."""
        return (
            f"{self.cores:g} cores, {self.sessions} sessions: {self.intra_op_threads} threads each, "
            f"{'spinning' if self.spinning else 'spinning but briefly'} while they wait"
        )


def plan_threads(cores: float, sessions: int) -> ThreadPlan:
    """Divide `cores` over `sessions` (one for each model and device), with one core kept for the front end."""
    whole = max(1, int(cores))
    share = (whole - 1) // max(1, sessions)
    return ThreadPlan(cores, sessions, max(share, min(SHARE_AT_LEAST, whole)), may_spin(cores))


def may_spin(cores: float) -> bool:
    """Whether threads may spin for as long as they wait."""
    return cores >= SPINNING_FROM_CORES


def spinning_of(cores: float, model_bytes: int) -> Spinning:
    """How the threads of a model wait whose files take so many bytes."""
    if may_spin(cores):
        return Spinning.FREELY
    return Spinning.BRIEFLY if model_bytes >= LARGE_MODEL_BYTES else Spinning.NEVER


def available_cores(cgroup_root: Path = ROOT, memberships: Path = MEMBERSHIPS, affinity: int = 0) -> float:
    """The cores that this process may use: the least of its affinity and the quotas of its cgroup and those above it.

    `memberships` names the process's cgroups as /proc/self/cgroup does. `affinity` 0 asks the system. Above 0.
    """
    allowed = affinity or len(os.sched_getaffinity(0))
    folders = cgroup_folders("cpu", "cpu", "cpu,cpuacct", root=cgroup_root, memberships=memberships)
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    return min([float(allowed), *quotas])


def _quota(folder: Path) -> float | None:
    """The quota of one cgroup in cores; None where there is no limit, or no such file."""
    fields = text_of(folder / "cpu.max").split()
    if not fields:
        fields = [text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")]
    try:
        quota, period = (int(field) for field in fields)
    except ValueError:  # "max", or nothing
        return None
    return quota / period if quota > 0 and period > 0 else None
