"""The memory of this process and what is left for it: its own size, its cgroup's limit, the machine's.

Inside a container the machine's figures are wrong: the kernel kills what goes over the cgroup's limit, whatever the
machine has free. Source: Linux `cgroup-v2` (memory.max, memory.current, memory.stat) and `cgroup-v1` memory
(memory.limit_in_bytes, memory.usage_in_bytes, memory.stat) documentation; proc(5).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from core.observability.cgroup import MEMBERSHIPS, ROOT, cgroup_folders, text_of
from core.observability.hardware import memory_bytes

# Opened once: each is a cycle of objects that stays until the collector comes by.
_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Bytes of one memory: `total` may be used in all, `free` of it is left."""

    total: int
    free: int


def host_room(
    cgroup_root: Path = ROOT,
    memberships: Path = MEMBERSHIPS,
    meminfo: Path = Path("/proc/meminfo"),
) -> MemoryRoom | None:
    """What this process may still take before the kernel ends it; None where nothing tells.

    It is the least of the machine's available memory and what is left in the process's cgroup and those above it.
    """
    folders = cgroup_folders("memory", "memory", root=cgroup_root, memberships=memberships)
    rooms = [room for folder in folders if (room := _cgroup_room(folder)) is not None]
    try:
        total, used = memory_bytes(text_of(meminfo))
        rooms.append(MemoryRoom(total, total - used))
    except ValueError:  # not Linux's, or hidden
        pass
    return min(rooms, key=lambda room: room.free, default=None)


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """The physical memory that this process holds, in bytes; 0 where nothing tells."""
    fields = text_of(statm).split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") if len(fields) > 1 else 0


def trim_heap() -> None:
    """Hand freed memory back to the system, where the C library can. Takes milliseconds; allocations wait."""
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)


def _cgroup_room(folder: Path) -> MemoryRoom | None:
    """The room in one cgroup; None where it has no limit, or there is no such cgroup.

    Pages of files that were not used for a while count as usage, but the kernel takes them back before it kills.
    """
    stat = dict(line.split() for line in text_of(folder / "memory.stat").splitlines() if len(line.split()) == 2)
    if (folder / "memory.max").exists():
        limit, usage, cached = text_of(folder / "memory.max"), text_of(folder / "memory.current"), "inactive_file"
    else:
        limit = text_of(folder / "memory.limit_in_bytes")
        usage, cached = text_of(folder / "memory.usage_in_bytes"), "total_inactive_file"
    try:
        total, used, reclaimable = int(limit), int(usage), int(stat.get(cached, 0))
    except ValueError:  # "max", or nothing
        return None
    return MemoryRoom(total, max(0, total - max(0, used - reclaimable)))
