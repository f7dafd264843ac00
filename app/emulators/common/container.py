"""A container: its program, run as a child process on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence

from app.emulators.common.breach_report import BreachReport
from app.emulators.common.container_client import HOST
from app.emulators.common.units import seconds


class Container:
    """Runs `command` in `environment`; its output goes to this process's output. One thread at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # In its own session, so that an interrupt from the terminal reaches only the emulator, which then stops it.
        self._child = subprocess.Popen(
            list(command), env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def exit_status(self) -> int | None:
        """None while the program runs."""
        return self._child.poll()

    def stop(self, within_s: float, report: BreachReport) -> None:
        """Send SIGTERM, and after `within_s` SIGKILL to all its processes. Returns when the program has ended."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            report.add(f"the container did not end within {seconds(within_s)} of SIGTERM and was killed")
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill all its processes: they have a process group to themselves."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def free_port() -> int:
    """A port of this machine that no process listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
