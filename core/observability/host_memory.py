"""The memory of this process and what is left for it: its own size, its cgroup's limit, the machine's.

Inside a container the machine's figures are wrong: the kernel kills what goes over the cgroup's limit, whatever the
machine has free. Source: Linux `cgroup-v2` (memory.max, memory.current, memory.stat) and `cgroup-v1` memory
(memory.limit_in_bytes, memory.usage_in_bytes, memory.stat) documentation; proc(5).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.observability.hardware import memory_bytes

# Opened once: each is a cycle of objects that stays until the collector comes by.
_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Bytes of one memory: `total` may be used in all, `free` of it is left."""

    total: int
    free: int


def host_room(
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    memberships: Path = Path("/proc/self/cgroup"),
    meminfo: Path = Path("/proc/meminfo"),
) -> MemoryRoom | None:
    """What this process may still take before the kernel ends it; None where nothing tells.

    It is the least of the machine's available memory and what is left in the process's cgroup and those above it.
    """
    rooms = [room for folder in _folders(cgroup_root, memberships) if (room := _cgroup_room(folder)) is not None]
    try:
        total, used = memory_bytes(_text(meminfo))
        rooms.append(MemoryRoom(total, total - used))
    except ValueError:  # not Linux's, or hidden
        pass
    return min(rooms, key=lambda room: room.free, default=None)


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """The physical memory that this process holds, in bytes; 0 where nothing tells."""
    fields = _text(statm).split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") if len(fields) > 1 else 0


def trim_heap() -> None:
    """Hand freed memory back to the system, where the C library can. Takes milliseconds; allocations wait."""
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)


def _folders(cgroup_root: Path, memberships: Path) -> Iterator[Path]:
    """The folders that may hold a limit: the process's own cgroup and all above it, of version 2 and of version 1.

    In a container with a namespace of its own the path is "/"; without one it is the host's and may not be visible:
    the root, which is then the container's own cgroup, is looked at in either case.
    """
    for line in _text(memberships).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = cgroup_root / "memory" if controllers else cgroup_root
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            yield mount.joinpath(*parts[:depth])


def _cgroup_room(folder: Path) -> MemoryRoom | None:
    """The room in one cgroup; None where it has no limit, or there is no such cgroup.

    Pages of files that were not used for a while count as usage, but the kernel takes them back before it kills.
    """
    stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if len(line.split()) == 2)
    if (folder / "memory.max").exists():
        limit, usage, cached = _text(folder / "memory.max"), _text(folder / "memory.current"), "inactive_file"
    else:
        limit = _text(folder / "memory.limit_in_bytes")
        usage, cached = _text(folder / "memory.usage_in_bytes"), "total_inactive_file"
    try:
        total, used, reclaimable = int(limit), int(usage), int(stat.get(cached, 0))
    except ValueError:  # "max", or nothing
        return None
    return MemoryRoom(total, max(0, total - max(0, used - reclaimable)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
