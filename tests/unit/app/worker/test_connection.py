from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import gevent
import numpy as np
import pytest
from gunicorn.config import Config

from tests.unit.app.worker.socket_pairs import LIMIT_S, received, socket_pair
from tests.unit.core.waiting.hub_thread import until
from trident.app.worker.connection import NEVER, ClientGone, CoarseClock, Connection, Connections, ReadOrder, Stage
from trident.app.worker.http1.connection import Http1Connection, Http1Service
from trident.app.worker.listening_sockets import ConnectionLimits
from trident.core.buffers import RequestBody
from trident.core.http.body import BodyInput
from trident.core.inference.tensors import Buffer

# More than the buffers of a socket pair hold.
LARGE = 4 << 20
# Large enough for shared memory.
BODY = 70_000


class Pair:
    """A connection and its client."""

    def __init__(self, shares_memory: bool = True, order: ReadOrder | None = None) -> None:
        ours, self.client = socket_pair()
        self.clock = CoarseClock()
        self.clock.now = 5.0
        order = order or ReadOrder()
        self.connection = Connection(ours, ("1.2.3.4", 5), self.clock, order, shares_memory=shares_memory)

    def close(self) -> None:
        self.connection.close()
        self.client.close()

    def start_large_response(self) -> tuple[Any, Any]:
        """The greenlet that sends a response of LARGE bytes, of which the client has read none, and the array sent."""
        array = np.arange(LARGE // 4, dtype=np.int32)
        parts: list[Buffer] = [b"head", array.data]
        sending = gevent.spawn(self.connection.send, parts, LARGE + 4)
        while self.connection.stage is not Stage.SEND:
            gevent.sleep(0)
        return sending, array


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_body_copied_out_of_shared_memory_receives_further_bytes(pair: Pair) -> None:
    """Otherwise the bytes refer to the shared memory, which is then never freed."""
    body = RequestBody(BODY, b"first ", 0, lambda size: np.zeros(size, np.uint8))
    shared = body.memory
    receiving = gevent.spawn(pair.connection.receive_body, body)
    gevent.sleep(0)
    body.leave_shared()
    pair.client.sendall(b"second")
    assert receiving.get(timeout=LIMIT_S) == 6
    assert bytes(body.memory[:12]) == b"first second"
    assert bytes(shared[:12]) == b"first " + bytes(6)


def test_slow_response_is_copied_out_of_shared_memory(pair: Pair) -> None:
    sending, array = pair.start_large_response()
    expected = b"head" + array.tobytes()
    pair.connection.leave_shared()
    array[:] = 0  # the engine reuses the memory
    assert received(pair.client, LARGE + 4) == expected
    sending.get(timeout=LIMIT_S)


def test_a_response_without_shared_memory_is_not_copied() -> None:
    pair = Pair(shares_memory=False)
    sending, array = pair.start_large_response()
    pair.connection.leave_shared()
    assert pair.connection.moves_since == NEVER
    array[-1] = 7
    assert received(pair.client, LARGE + 4)[-4:] == np.int32(7).tobytes()
    sending.get(timeout=LIMIT_S)
    pair.close()


def test_sending_to_a_disconnected_client_raises_client_gone(pair: Pair) -> None:
    assert not pair.connection.client_gone()
    pair.client.close()
    assert pair.connection.client_gone()
    with pytest.raises(ClientGone):
        pair.connection.send([b"late"], 4)


def test_a_connection_that_times_out_wakes_its_greenlet(pair: Pair) -> None:
    waiting = gevent.spawn(pair.connection.receive, 1)
    gevent.sleep(0)
    pair.connection.time_out()
    assert waiting.get(timeout=LIMIT_S) == b""
    assert pair.connection.stage is Stage.ENDED


def test_connections_are_read_in_order_of_arrival() -> None:
    """Also if all of them came while the process did something else."""
    order = ReadOrder()
    pairs = [Pair(order=order) for _ in range(8)]
    read: list[int] = []

    def serve(number: int) -> None:
        while pairs[number].connection.receive(1):
            read.append(number)

    serving = [gevent.spawn(serve, number) for number in range(8)]
    for numbers in ([0, 1, 2, 3, 4, 5, 6, 7], [5, 2, 7, 0, 1, 6, 3, 4]):
        gevent.sleep(0.01)
        for number in numbers:
            pairs[number].client.send(b"x")
        until(lambda: len(read) == 8)
        assert read == numbers
        read.clear()
    for each in pairs:
        each.client.close()
    gevent.joinall(serving, LIMIT_S)
    for each in pairs:
        each.close()


class Crowd:
    """Connections over socket pairs, on the test's clock."""

    def __init__(self, max_connections: int) -> None:
        self.clock = CoarseClock()
        self.clock.now = 0.0
        limits = ConnectionLimits(request_timeout_s=60, keepalive_s=600)
        self.connections = Connections(self.clock, limits, max_connections)
        self._service = Http1Service(lambda environ, start: [], ("h", 80), Config(), self.connections)
        self._sockets: list[socket.socket] = []

    def join(self, stage: Stage, since: float = 0.0) -> tuple[Http1Connection, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sockets += [ours, theirs]
        connection = Http1Connection(ours, ("1.2.3.4", 5), self._service)
        connection.stage = stage
        connection.since = since
        self.connections.open.add(connection)
        return connection, theirs

    def disperse(self) -> None:
        for each in self._sockets:
            each.close()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd(max_connections=10)
    yield crowd
    crowd.disperse()


def test_idle_connections_make_room_for_those_of_other_listeners(crowd: Crowd) -> None:
    idle = [crowd.join(Stage.IDLE, since)[0] for since in (3.0, 1.0, 2.0)]
    crowd.connections.sweep(others=6)
    assert [connection.stage for connection in idle] == [Stage.IDLE] * 3
    crowd.connections.sweep(others=8)
    assert [connection.stage for connection in idle] == [
        Stage.IDLE,
        Stage.ENDED,
        Stage.ENDED,
    ]


def test_a_stop_closes_connections_that_wait_for_a_request(crowd: Crowd) -> None:
    idle, _ = crowd.join(Stage.IDLE)
    half, _ = crowd.join(Stage.HEAD)
    asking, client = crowd.join(Stage.IDLE)
    body, _ = crowd.join(Stage.BODY)
    new, _ = crowd.join(Stage.NEW)
    client.send(b"GET ")
    crowd.connections.close_idle()
    stages = [connection.stage for connection in (idle, half, asking, body, new)]
    assert stages == [
        Stage.ENDED,
        Stage.ENDED,
        Stage.IDLE,
        Stage.BODY,
        Stage.NEW,
    ]
    crowd.join(Stage.LINGER)
    assert crowd.connections.in_flight() == 2
    assert crowd.connections.closing


def test_new_connection_may_send_its_first_request_shortly_after_a_stop(crowd: Crowd) -> None:
    new, _ = crowd.join(Stage.NEW)
    crowd.connections.close_idle()
    crowd.clock.now = 2.0
    crowd.connections.sweep()
    assert new.stage is Stage.NEW
    crowd.clock.now = 2.1
    crowd.connections.sweep()
    assert new.stage is Stage.ENDED


# --- io


def test_body_input_reads_like_a_file() -> None:
    source = BodyInput(memoryview(b"one\ntwo\nthree"))
    assert source.read(2) == b"on"
    assert source.readline() == b"e\n"
    assert source.read(100) == b"two\nthree"
    assert source.read() == b""
    assert list(BodyInput(memoryview(b"a\nb"))) == [b"a\n", b"b"]
    assert BodyInput(memoryview(b"abc")).read() == b"abc"
