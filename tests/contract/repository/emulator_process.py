"""An emulator of an object store in its own process."""

from __future__ import annotations

import subprocess
import tempfile
from types import TracebackType
from typing import Self

from tests.contract.servers.ports import HOST, free_ports
from tests.waiting import until

_STOP_LIMIT_S = 45.0


class EmulatorProcess:
    """A context manager: empty and ready on entry, ended on exit. It keeps objects in memory."""

    environment: dict[str, str] | None = None

    def __init__(self) -> None:
        self.port = free_ports(1)[0]

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def __enter__(self) -> Self:
        command = self.command()
        # Some read an earlier state from their working directory.
        self._folder = tempfile.TemporaryDirectory()
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, cwd=self._folder.name, env=self.environment, stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        try:
            until(lambda: self.answers() or self._process.poll() is not None, f"{command} does not answer")
            assert self._process.poll() is None, f"{command} ended with status {self._process.returncode}"
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
