"""The directory that the processes of one server share and nobody else sees.

engine.sock   where the engine listens
loads         what was loaded by request, for an engine that is started again
metrics/      the front ends' counts of requests
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "trident-"


class PrivateDirectory:
    """`path` is this user's alone (mode 0700); two servers never have the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "engine.sock"
        self.loads = path / "loads"
        self.metrics = path / "metrics"

    @classmethod
    def make(cls, parent: Path | None = None) -> PrivateDirectory:
        """A new one, named after this process. Removes those of servers that were killed before they could."""
        folder = parent or Path(tempfile.gettempdir())
        remove_abandoned(folder)
        made = cls(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=folder)))
        made.metrics.mkdir()
        return made

    def remove(self) -> None:
        """May be called again, and by more than one process."""
        shutil.rmtree(self.path, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove the directories of this user's servers that are not there any more."""
    for path in folder.glob(f"{_PREFIX}*-*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if number.isdigit() and path.stat().st_uid == os.getuid() and not _is_alive(int(number)):
                shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
