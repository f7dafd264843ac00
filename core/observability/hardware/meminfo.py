"""The memory of the machine, as /proc/meminfo gives it."""

from __future__ import annotations


def memory_bytes(meminfo: str) -> tuple[int, int]:
    """Total and used bytes from the text of /proc/meminfo; used is total less available. Raises ValueError."""
    kilobytes = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    try:
        total, available = (int(kilobytes[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, IndexError) as error:
        raise ValueError(f"/proc/meminfo has no {error}") from error
    return total, total - available
