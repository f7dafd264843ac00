"""An emulator as a process, and in a thread of this process, and the processes of its container."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.contract.platforms.container import platform_environment
from tests.contract.servers.session import TRIDENT, start_session
from tests.waiting import until

LIMIT_S = 120.0


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A container's folder for temporary files. It is not in `tmp_path`: the address of a socket is short."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def container_members(temporary: Path) -> list[int]:
    """The processes whose folder for temporary files is in `temporary`: a container's, even after it has ended."""
    mark = f"TMPDIR={temporary}".encode()
    members = []
    for variables in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark in variables.read_bytes():
                members.append(int(variables.parent.name))
    return members


def signal_members(temporary: Path, number: int) -> None:
    for member in container_members(temporary):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)


class EmulatorProcess:
    """`trident emulate PLATFORM`. A context manager: its API is open on entry, unless `ready` is false.

    On exit it must have ended, and its container and its temporary files must be gone. The log is in `folder`.
    """

    platform: str
    open_text: str
    """The log line that shows that the API is open."""

    def __init__(
        self, folder: Path, *arguments: str, ready: bool = True, variables: Mapping[str, str] | None = None
    ) -> None:
        self._held = contextlib.ExitStack()
        self.temporary = self._held.enter_context(temporary_folder())
        self._log = folder / "log"
        self._arguments = arguments
        self._ready = ready
        self._variables = {"TMPDIR": str(self.temporary), **(variables or {})}

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [TRIDENT, "emulate", self.platform, *self._arguments]
        self.process = start_session(command, self._log, env=platform_environment(self._variables))
        try:
            if self._ready:
                self.wait_for_text(self.open_text)
                self._on_open()
        except BaseException:
            self._clear()
            raise
        return self

    def _on_open(self) -> None:
        """Make the clients of the API."""

    def _check_end(self) -> None:
        assert self.process.poll() is not None, "a test must end what it starts"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._check_end()
                assert self.container_members() == []
                assert list(self.temporary.iterdir()) == []
        finally:
            self._clear()

    def end(self, number: int = signal.SIGINT) -> int:
        """Send the signal of Ctrl-C, or another. Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def text(self) -> str:
        """The output of the emulator and its container."""
        return self._log.read_text(errors="replace")

    def wait_for_text(self, text: str) -> None:
        until(lambda: text in self.text() or self.process.poll() is not None, self.text)
        assert text in self.text(), self.text()

    def container_members(self) -> list[int]:
        return [member for member in container_members(self.temporary) if member != self.process.pid]

    def _clear(self) -> None:
        signal_members(self.temporary, signal.SIGKILL)
        self.process.wait()
        self._held.close()


class Emulator(Protocol):
    def run(self, stopped: threading.Event, on_ready: Callable[[str], None] | None = None) -> int: ...


class EmulatorThread:
    """An emulator with shorter limits than those of the command. A context manager: `url` is that of the API, which is
    open on entry. The emulator has ended on exit."""

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
