"""The control groups that limit this process: its own and all their ancestors, of versions 2 and 1.

Source: Linux `cgroup-v2` and `cgroup-v1` documentation; cgroups(7) for /proc/self/cgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")


def cgroup_folders(controller: str, *mounts: str, root: Path = ROOT, memberships: Path = MEMBERSHIPS) -> Iterator[Path]:
    """The folders that may hold a limit of the controller; they need not exist.

    `mounts` are the names under `root` at which version 1 may mount the controller. `memberships` is the file that
    names the process's cgroups. In a container with its own cgroup namespace the path there is "/". Without one it is
    the host's path, which may not be visible; then the root is the container's cgroup. So the root is always included.
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
    """The text of a kernel file, stripped; empty if the file does not exist or cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
