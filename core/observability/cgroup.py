"""The control groups that bound this process: its own and all above it, of version 2 and of version 1.

Source: Linux `cgroup-v2` and `cgroup-v1` documentation; cgroups(7) for /proc/self/cgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")


def cgroup_folders(controller: str, *mounts: str, root: Path = ROOT, memberships: Path = MEMBERSHIPS) -> Iterator[Path]:
    """The folders that may hold a limit of the controller, whether they exist or not.

    `mounts` are the names under `root` at which version 1 may have it; `memberships` names the process's cgroups. In a
    container with a namespace of its own the path is "/"; without one it is the host's and may not be visible: the
    root, which is then the container's own cgroup, is looked at in either case.
    """
    for line in text_of(memberships).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in [root / name for name in mounts] if controllers else [root]:
            for depth in range(len(parts) + 1):
                yield mount.joinpath(*parts[:depth])


def text_of(path: Path) -> str:
    """What a file of the kernel's says, without the space around it; empty where there is none, or it is hidden."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
