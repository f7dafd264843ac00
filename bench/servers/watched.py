"""The server of the checkout in this folder, with the length of each garbage collection written to a file.

    python bench/servers/watched.py FILE serve --model-repository=…

A line of FILE is the process, the generation and the microseconds, of CPU time: what the collector holds up requests
for on a machine that does nothing else.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from pathlib import Path


class _CollectionLog:
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


def pauses_us(path: Path) -> list[float]:
    """The collections that were written so far."""
    return [float(line.split()[2]) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    # Checkouts from before the package `trident` have its folders alone.
    program = importlib.import_module("trident.app.cli" if Path("trident").exists() else "app.cli")
    gc.callbacks.append(_CollectionLog(sys.argv.pop(1)))
    sys.exit(program.main())
