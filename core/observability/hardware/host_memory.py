"""The memory that this process uses, and the memory that its cgroups and the machine leave to it.

The machine's figures alone are wrong in a container: the kernel kills a process that exceeds its cgroup's limit, even
if the machine has free memory.
Source: Linux `cgroup-v2` (memory.max, memory.current, memory.stat) and `cgroup-v1` memory
(memory.limit_in_bytes, memory.usage_in_bytes, memory.stat) documentation; proc(5).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from core.observability.hardware.cgroup import MEMBERSHIPS, ROOT, cgroup_folders, text_of
from core.observability.hardware.meminfo import memory_bytes

# Opened once: each CDLL is a reference cycle that stays until the garbage collector runs.
_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """`total` is the limit and `free` the unused part of it, in bytes."""

    total: int
    free: int


def host_room(
    cgroup_root: Path = ROOT,
    memberships: Path = MEMBERSHIPS,
    meminfo: Path = Path("/proc/meminfo"),
) -> MemoryRoom | None:
    """The memory that this process may still allocate before the kernel kills it; None if the system does not tell.

    It is the smallest of the machine's available memory and the room in the process's cgroup and its ancestors.
    """
    folders = cgroup_folders("memory", "memory", root=cgroup_root, memberships=memberships)
    rooms = [room for folder in folders if (room := _cgroup_room(folder)) is not None]
    try:
        total, used = memory_bytes(text_of(meminfo))
        rooms.append(MemoryRoom(total, total - used))
    except ValueError:  # no Linux, or the file is hidden
        pass
    return min(rooms, key=lambda room: room.free, default=None)


def resident_bytes(process: int | str = "self", proc: Path = Path("/proc")) -> int:
    """The resident memory of a process, by default of this one, in bytes; 0 if the system does not tell."""
    fields = text_of(proc / str(process) / "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") if len(fields) > 1 else 0


def trim_heap() -> None:
    """Return freed memory to the system, if the C library can. Takes milliseconds; allocations wait."""
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)


def _cgroup_room(folder: Path) -> MemoryRoom | None:
    """The room in one cgroup; None if it has no limit or does not exist.

    The usage includes inactive file pages, which the kernel reclaims before it kills.
    """
    stat = dict(line.split() for line in text_of(folder / "memory.stat").splitlines() if len(line.split()) == 2)
    if (folder / "memory.max").exists():
        limit, usage, cached = text_of(folder / "memory.max"), text_of(folder / "memory.current"), "inactive_file"
    else:
        limit = text_of(folder / "memory.limit_in_bytes")
        usage, cached = text_of(folder / "memory.usage_in_bytes"), "total_inactive_file"
    try:
        total, used, reclaimable = int(limit), int(usage), int(stat.get(cached, 0))
    except ValueError:  # "max", or an empty text
        return None
    return MemoryRoom(total, max(0, total - max(0, used - reclaimable)))
