from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from gunicorn.config import Config

from trident.app.worker.connection import Connections, Phase
from trident.app.worker.http1.connection import Http1Connection, Http1Service
from trident.app.worker.io import CoarseClock
from trident.app.worker.limits import ConnectionLimits


class Crowd:
    """Connections over socket pairs, on the test's clock."""

    def __init__(self, places: int) -> None:
        self.clock = CoarseClock()
        self.clock.now = 0.0
        limits = ConnectionLimits(request_timeout_s=60, keepalive_s=600)
        self.connections = Connections(self.clock, limits, places)
        self._service = Http1Service(lambda environ, start: [], ("h", 80), Config(), self.connections)
        self._sockets: list[socket.socket] = []

    def join(self, phase: Phase, since: float = 0.0) -> tuple[Http1Connection, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sockets += [ours, theirs]
        connection = Http1Connection(ours, ("1.2.3.4", 5), self._service)
        connection.phase = phase
        connection.since = since
        self.connections.open.add(connection)
        return connection, theirs

    def disperse(self) -> None:
        for each in self._sockets:
            each.close()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd(places=10)
    yield crowd
    crowd.disperse()


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [(Phase.NEW, 600), (Phase.IDLE, 600), (Phase.HEAD, 60), (Phase.BODY, 60), (Phase.SEND, 60), (Phase.LINGER, 2)],
)
def test_a_phase_that_takes_too_long_ends_the_connection(crowd: Crowd, phase: Phase, seconds: float) -> None:
    connection, _ = crowd.join(phase)
    crowd.clock.now = seconds
    crowd.connections.sweep()
    assert connection.phase is phase
    crowd.clock.now = seconds + 0.1
    crowd.connections.sweep()
    assert connection.phase is Phase.ENDED


@pytest.mark.parametrize(("phase", "begin"), [(Phase.BODY, b"HTTP/1.1 408 "), (Phase.IDLE, b""), (Phase.SEND, b"")])
def test_only_an_unfinished_request_is_answered_with_408(crowd: Crowd, phase: Phase, begin: bytes) -> None:
    _, client = crowd.join(phase)
    crowd.clock.now = 1000
    crowd.connections.sweep()
    assert client.recv(1000).startswith(begin)


def test_the_application_has_no_timeout(crowd: Crowd) -> None:
    connection, _ = crowd.join(Phase.APPLICATION)
    crowd.clock.now = 1e6
    crowd.connections.sweep()
    assert connection.phase is Phase.APPLICATION


def test_the_longest_idle_connections_make_room(crowd: Crowd) -> None:
    idle = [crowd.join(Phase.IDLE, since)[0] for since in (3.0, 1.0, 2.0)]
    busy = [crowd.join(Phase.APPLICATION)[0] for _ in range(8)]
    crowd.connections.sweep()
    assert [connection.phase for connection in idle] == [Phase.IDLE, Phase.ENDED, Phase.ENDED]
    assert {connection.phase for connection in busy} == {Phase.APPLICATION}


def test_idle_connections_make_room_for_those_of_other_listeners(crowd: Crowd) -> None:
    idle = [crowd.join(Phase.IDLE, since)[0] for since in (3.0, 1.0, 2.0)]
    crowd.connections.sweep(others=6)
    assert [connection.phase for connection in idle] == [Phase.IDLE] * 3
    crowd.connections.sweep(others=8)
    assert [connection.phase for connection in idle] == [Phase.IDLE, Phase.ENDED, Phase.ENDED]


def test_a_stop_closes_connections_that_wait_for_a_request(crowd: Crowd) -> None:
    idle, _ = crowd.join(Phase.IDLE)
    half, _ = crowd.join(Phase.HEAD)
    asking, client = crowd.join(Phase.IDLE)
    body, _ = crowd.join(Phase.BODY)
    new, _ = crowd.join(Phase.NEW)
    client.send(b"GET ")
    crowd.connections.close_idle()
    phases = [connection.phase for connection in (idle, half, asking, body, new)]
    assert phases == [Phase.ENDED, Phase.ENDED, Phase.IDLE, Phase.BODY, Phase.NEW]
    crowd.join(Phase.LINGER)
    assert crowd.connections.in_flight() == 2
    assert crowd.connections.closing


def test_a_new_connection_has_a_moment_for_its_first_request_after_a_stop_began(crowd: Crowd) -> None:
    new, _ = crowd.join(Phase.NEW)
    crowd.connections.close_idle()
    crowd.clock.now = 2.0
    crowd.connections.sweep()
    assert new.phase is Phase.NEW
    crowd.clock.now = 2.1
    crowd.connections.sweep()
    assert new.phase is Phase.ENDED
