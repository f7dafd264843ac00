from __future__ import annotations

import socket
from collections.abc import Iterator

import gevent
import pytest

from trident.app.worker.listener import Listener
from trident.app.worker.listening_sockets import open_listener


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
    with accepting.connect() as first, accepting.connect() as second:
        accepting.listener.accept_queued()
        accepting.listener.close()
        gevent.sleep(0)
        assert accepting.peers == ["127.0.0.1", "127.0.0.1"]
        assert (first.recv(1), second.recv(1)) == (b"", b"")


def test_a_refusal_closes_the_listener_and_the_port_in_all_processes(accepting: Accepting) -> None:
    accepting.listener.start()
    accepting.listener.refuse()
    accepting.listener.refuse()  # a second time changes nothing
    assert accepting.listener.closed
    with pytest.raises(ConnectionRefusedError):
        accepting.connect()


def test_a_listener_whose_port_another_process_refused_closes_without_a_word(
    accepting: Accepting, capfd: pytest.CaptureFixture[str]
) -> None:
    accepting.listener.start()
    accepting.socket.shutdown(socket.SHUT_RDWR)
    gevent.sleep(0.01)
    assert accepting.listener.closed
    assert capfd.readouterr() == ("", "")
