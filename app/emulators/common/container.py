"""The container's own program, run on this machine as a child."""

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
    """`command` in `environment`. One thread at a time; its output goes to ours."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A session of its own: an interrupt from the terminal is for the emulator, which then stops it as it must.
        self._child = subprocess.Popen(
            list(command), env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._child.poll()

    def stop(self, within_s: float, report: BreachReport) -> None:
        """SIGTERM, and after `within_s` SIGKILL for all that is left of it. Returns when it is gone."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            report.add(f"the container did not end within {seconds(within_s)} of SIGTERM and was killed")
        finally:
            self.kill()

    def kill(self) -> None:
        """Leave nothing of it. Its processes are in one group that nobody else is in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
