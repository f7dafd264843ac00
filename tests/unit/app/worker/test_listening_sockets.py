from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from trident.app.settings.server import Service
from trident.app.worker.listening_sockets import BindFailed, drop_handshakes, open_listener, open_listeners
from trident.app.worker.worker import Listener, Ports


def test_a_taken_port_is_named() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindFailed, match=f"^Socket '127.0.0.1:{port}' already in use $"):
            open_listeners([Service("127.0.0.1", 0), Service("127.0.0.1", port)])


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_queued_connections_are_accepted_while_handshakes_are_dropped(address: str) -> None:
    with open_listener(address, 0) as listener:
        with socket.create_connection(listener.getsockname()[:2]) as queued:
            drop_handshakes(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(listener.getsockname()[:2], timeout=0.05)
            listener.accept()[0].close()
            assert queued.recv(1) == b""
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


class Accepting:
    """A listener on a free port that records the peers it serves; `places` bounds their number."""

    def __init__(self, places: int = 10) -> None:
        self.peers: list[str] = []
        self.socket = open_listener("127.0.0.1", 0)
        self.socket.setblocking(False)
        self.address = self.socket.getsockname()
        self.started = 0
        self.listener = Listener(self.socket.dup(), self._serve, lambda: self.started < places)

    def _serve(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        self.started += 1
        self.peers.append(peer[0])
        sock.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=60)


@pytest.fixture
def accepting() -> Iterator[Accepting]:
    accepting = Accepting()
    yield accepting
    accepting.listener.close()
    accepting.socket.close()


def test_a_queued_connection_is_served_before_the_close(accepting: Accepting) -> None:
    served: list[str] = []

    class Connections:
        def close_idle(self) -> None:
            served.extend(accepting.peers)

    with accepting.connect() as first, accepting.connect() as second:
        ports = Ports([accepting.listener], Connections())
        ports.close()
        assert served == ["127.0.0.1", "127.0.0.1"]
        assert accepting.listener.closed
        assert (first.recv(1), second.recv(1)) == (b"", b"")


def test_a_refusal_closes_the_listener_and_the_port_in_all_processes(accepting: Accepting) -> None:
    accepting.listener.start()
    accepting.listener.refuse()
    accepting.listener.refuse()  # a second time changes nothing
    assert accepting.listener.closed
    with pytest.raises(ConnectionRefusedError):
        accepting.connect()
