"""A share of a core for a process, so that it is what ends first on a machine with few cores.

Source: Linux documentation of `cgroup-v2` (cpu.max) and of bandwidth control (cpu.cfs_quota_us).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# Short, so that requests do not wait long for the next one.
_PERIOD_US = 10_000


@contextmanager
def limited(processes: dict[int, float]) -> Iterator[bool]:
    """Inside, each process has at most its share of a core. Gives whether it could be done: it takes root, and a
    cgroup in which the controller `cpu` is on.
    """
    folders: list[Path] = []
    parent = _ROOT / "cpu" if (_ROOT / "cpu").is_dir() else _ROOT
    try:
        for process, share in processes.items():
            folder = parent / f"trident-bench-{os.getpid()}-{process}"
            folder.mkdir()
            folders.append(folder)
            _limit(folder, round(share * _PERIOD_US))
            (folder / "cgroup.procs").write_text(str(process))
        done = True
    except OSError:
        done = False
    try:
        yield done
    finally:
        for folder in folders:
            with suppress(OSError):
                for left in (folder / "cgroup.procs").read_text().split():
                    (parent / "cgroup.procs").write_text(left)
                folder.rmdir()


def _limit(folder: Path, quota_us: int) -> None:
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
