"""The server, with the length of each garbage collection of its processes written to a file.

    python -m bench.tails.watched FILE serve --model-repository=...

A line of FILE is the process, the generation and the microseconds, of CPU time: what the collector holds up requests
for on a machine that does nothing else.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from trident.app.cli import main


class Collection(NamedTuple):
    process: int
    generation: int
    took_us: float


class _Watch:
    """A callback of the collector; forked processes have it too."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._began = 0

    def __call__(self, phase: str, found: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time_ns()
            return
        took = time.thread_time_ns() - self._began
        os.write(self._file, f"{os.getpid()} {found['generation']} {took / 1000:.1f}\n".encode())


def collections(path: Path) -> list[Collection]:
    """Those that were written so far."""
    lines = path.read_text().splitlines()
    return [Collection(int(line.split()[0]), int(line.split()[1]), float(line.split()[2])) for line in lines]


if __name__ == "__main__":
    gc.callbacks.append(_Watch(sys.argv.pop(1)))
    sys.exit(main())
