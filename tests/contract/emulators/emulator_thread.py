"""An emulator in a thread of this process, with shorter limits than those of the command."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tests.waiting import until

LIMIT_S = 60.0


class Emulator(Protocol):
    def run(self, stopped: threading.Event, on_ready: Callable[[str], None] | None = None) -> int: ...


class EmulatorThread:
    """A context manager: `url` is that of the API, which is open on entry. The emulator has ended on exit."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> EmulatorThread:
        urls: list[str] = []
        self._running = self._pool.submit(self._emulator.run, self._stopped, urls.append)
        try:
            until(lambda: urls or self._running.done(), "the emulator is not ready")
            assert urls, f"the emulator has ended with status {self._running.result()}"
        except BaseException:
            self._stopped.set()
            raise
        (self.url,) = urls
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def end(self) -> int:
        """Stop the emulator. Returns the exit status."""
        self._stopped.set()
        return self.wait()

    def wait(self) -> int:
        """The exit status of an emulator that ends by itself."""
        return self._running.result(LIMIT_S)


def container_members(temporary: Path) -> list[int]:
    """The processes whose folder for temporary files is `temporary`: those of a container, even after it has ended."""
    mark = f"TMPDIR={temporary}\0".encode()
    members = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark in environment.read_bytes():
                members.append(int(environment.parent.name))
    return members


def signal_members(temporary: Path, number: int) -> None:
    for member in container_members(temporary):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)
