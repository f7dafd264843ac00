"""The platform's probes of a container: liveness, a connection to its port, and health, a request.

Liveness is probed only after a start, health as long as the container serves. Until a probe succeeds it is repeated
more often than on the platform, to save time; the time limits are the platform's.
Source: docs/spec/vertex.md section A2.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from trident.app.emulators.container import HOST, ContainerClient, ContainerFault
from trident.app.emulators.report import BreachReport, seconds
from trident.app.emulators.vertex.limits import PlatformLimits

_OK = 200
_POLL_S = 0.05
_CONNECT_S = 1.0


class Restartable(Protocol):
    """A container that can be probed and restarted."""

    @property
    def exit_status(self) -> int | None: ...

    def restart(self, within_s: float, report: BreachReport) -> None: ...


class _Start(Enum):
    READY = auto()
    STOPPED = auto()
    ENDED = auto()
    LATE = auto()


class Probes:
    """Probes `port` and `health_path` of a container. One thread, except for `has_traffic`."""

    def __init__(
        self,
        container: Restartable,
        client: ContainerClient,
        port: int,
        health_path: str,
        limits: PlatformLimits,
        report: BreachReport,
        say: Callable[[str], None],
    ) -> None:
        """`say` gets messages for the user that are not breaches."""
        self._container = container
        self._client = client
        self._port = port
        self._health_path = health_path
        self._limits = limits
        self._report = report
        self._say = say
        self._has_traffic = False
        self._last = "was not asked"
        self._failures = 0

    @property
    def has_traffic(self) -> bool:
        """Whether calls reach the container. Any thread."""
        return self._has_traffic

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until the container is healthy for the first time.

        False if it is stopped before, the container ends, or the time is over: then the deployment has failed.
        """
        outcome = self._start(is_stopped, time.monotonic() + self._limits.deployment_s)
        if outcome is _Start.ENDED:
            self._report.add(f"the container ended by itself, with status {self._container.exit_status}")
        elif outcome is _Start.LATE:
            limit = seconds(self._limits.deployment_s)
            self._report.add(
                f"the container was not healthy {limit} after its start: at the last probe it {self._last}"
            )
        return outcome is _Start.READY

    def watch(self, stopped: threading.Event) -> None:
        """Probe until `stopped` is set. A container that ends is restarted."""
        while not stopped.wait(self._limits.health_interval_s):
            status = self._container.exit_status
            if status is None:
                self._check_health()
                continue
            self._has_traffic = False
            self._report.add(f"the container ended by itself, with status {status}, and was started again")
            self._container.restart(self._limits.stop_s, self._report)
            if self._start(stopped.is_set, math.inf) is _Start.READY:
                self._say("the container is healthy again and gets calls")

    def _start(self, is_stopped: Callable[[], bool], deadline: float) -> _Start:
        """Probe from the start of the container until it is healthy."""
        listens = False
        started = time.monotonic()
        while not is_stopped():
            if self._container.exit_status is not None:
                return _Start.ENDED
            listens = listens or self._listens()
            if listens and self._is_healthy():
                self._failures = 0
                self._has_traffic = True
                return _Start.READY
            now = time.monotonic()
            if now > deadline:
                return _Start.LATE
            if not listens and now - started > self._last_try_s():
                self._restart_for_silence()
                started = time.monotonic()
            time.sleep(_POLL_S)
        return _Start.STOPPED

    def _last_try_s(self) -> float:
        """Seconds from the start to the platform's last liveness probe."""
        return (self._limits.liveness_tries - 1) * self._limits.liveness_interval_s

    def _restart_for_silence(self) -> None:
        tries, apart = self._limits.liveness_tries, seconds(self._limits.liveness_interval_s)
        self._report.add(
            f"liveness: the container did not listen on port {self._port} in {tries} tries {apart} apart and was "
            "started again"
        )
        self._container.restart(self._limits.stop_s, self._report)

    def _listens(self) -> bool:
        try:
            socket.create_connection((HOST, self._port), _CONNECT_S).close()
        except OSError:
            self._last = f"did not listen on port {self._port}"
            return False
        return True

    def _is_healthy(self) -> bool:
        try:
            answer = self._client.ask("GET", self._health_path, within_s=self._limits.health_s)
        except ContainerFault as fault:
            self._last = str(fault)
            return False
        self._last = f"answered {answer.status}: {answer.text[:200]}"
        return answer.status == _OK

    def _check_health(self) -> None:
        if self._is_healthy():
            self._failures = 0
            if not self._has_traffic:
                self._has_traffic = True
                self._say("the container is healthy again and gets calls")
            return
        self._failures += 1
        if self._failures >= self._limits.health_failures and self._has_traffic:
            self._has_traffic = False
            self._report.add(
                f"health: {self._failures} failed probes in a row, so the container got no more calls: "
                f"at the last one it {self._last}"
            )
