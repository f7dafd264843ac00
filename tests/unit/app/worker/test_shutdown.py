from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import pytest

from tests.project import pure_python_only
from trident.app.worker.connection import Connections, Phase
from trident.app.worker.io import CoarseClock
from trident.app.worker.limits import ConnectionLimits, StopTimes
from trident.app.worker.shutdown import Ports, Shutdown


class Busy:
    """A connection whose application has not answered yet."""

    phase = Phase.APPLICATION


class Silent:
    """A connection whose client has sent nothing yet."""

    phase = Phase.NEW


class Parts:
    """A site and two listeners that record their calls."""

    failure: str | None = None

    def __init__(self, drains: bool) -> None:
        self.applications: dict[int, object] = {}
        self.calls: list[str] = []
        self.finished_in: threading.Thread | None = None
        self._drains = drains

    def begin_exit(self) -> None:
        self.calls.append("begin_exit")

    def listener(self, name: str) -> SimpleNamespace:
        steps = ("drop_handshakes", "accept_queued", "close")
        return SimpleNamespace(**{step: partial(self.calls.append, f"{step} {name}") for step in steps})

    def tick(self) -> None:
        self.calls.append("tick")

    def log_in_flight(self, seconds_left: float) -> None:
        self.calls.append("log_in_flight")

    def finish(self, timeout_s: float) -> bool:
        assert 0 <= timeout_s <= 60
        self.calls.append("finish")
        self.finished_in = threading.current_thread()
        return self._drains


@pytest.mark.slow
@pytest.mark.parametrize("drains", [True, False])
def test_a_stop_closes_the_ports_finishes_the_site_and_closes_the_last_ports(drains: bool) -> None:
    parts = Parts(drains)
    ports, last_ports = (Ports([], Connections(CoarseClock(), ConnectionLimits(), 10)) for _ in range(2))
    ports.listeners.append(parts.listener("first"))
    last_ports.listeners.append(parts.listener("last"))
    times = StopTimes(drain_grace_s=0.01, exit_timeout_s=60.0)
    assert Shutdown(parts, [ports], last_ports, times, parts.tick).run() is drains  # type: ignore[arg-type]
    assert [call for call in parts.calls if call != "tick"] == [
        "begin_exit",
        "drop_handshakes first",
        "accept_queued first",
        "close first",
        "finish",
        "drop_handshakes last",
        "accept_queued last",
        "close last",
    ]
    assert ports.connections.closing
    assert last_ports.connections.closing
    assert parts.finished_in is not threading.main_thread()


@pure_python_only
def test_the_requests_of_models_are_logged_while_connections_wait_for_them() -> None:
    connections = Connections(CoarseClock(), ConnectionLimits(), 10)
    busy = Busy()
    connections.open.add(busy)  # type: ignore[arg-type]

    class Site(Parts):
        def log_in_flight(self, seconds_left: float) -> None:
            super().log_in_flight(seconds_left)
            connections.open.discard(busy)  # type: ignore[arg-type]

    site = Site(drains=True)
    ports = Ports([], connections)
    none = Ports([], Connections(CoarseClock(), ConnectionLimits(), 10))
    assert Shutdown(site, [ports], none, StopTimes(exit_timeout_s=60.0), site.tick).run()  # type: ignore[arg-type]
    assert [call for call in site.calls if call != "tick"] == ["begin_exit", "log_in_flight", "finish"]


@pure_python_only
def test_a_connection_without_a_request_does_not_make_a_stop_fail() -> None:
    connections = Connections(CoarseClock(), ConnectionLimits(), 10)
    connections.open.add(Silent())  # type: ignore[arg-type]
    site = Parts(drains=True)
    ports = Ports([], connections)
    none = Ports([], Connections(CoarseClock(), ConnectionLimits(), 10))
    assert Shutdown(site, [ports], none, StopTimes(exit_timeout_s=0.0), site.tick).run()  # type: ignore[arg-type]
