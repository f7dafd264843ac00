"""The replica of a deployment: it starts and restarts the container.

Source: docs/spec/vertex.md section A2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.emulators.common.breach_report import BreachReport
from app.emulators.common.container import Container


class Replica:
    """Runs one container at a time. Used by one thread at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._container = Container(command, environment)

    @property
    def exit_status(self) -> int | None:
        """None while the container runs."""
        return self._container.exit_status

    def restart(self, within_s: float, report: BreachReport) -> None:
        """Stop the container, as `stop` does, and start a new one."""
        self._container.stop(within_s, report)
        self._container = Container(self._command, self._environment)

    def stop(self, within_s: float, report: BreachReport) -> None:
        """Stop the container. Returns when it has ended."""
        self._container.stop(within_s, report)

    def kill(self) -> None:
        """Kill all processes of the container."""
        self._container.kill()
