from __future__ import annotations

import socket
import sys

import pytest

from trident.app.worker.listening_sockets import Bind, BindFailed, drop_handshakes, open_listener, open_listeners


def test_a_taken_port_is_named() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindFailed, match=f"^Socket '127.0.0.1:{port}' already in use $"):
            open_listeners([Bind("127.0.0.1", 0), Bind("127.0.0.1", port)])


def test_a_port_may_be_shared_on_request() -> None:
    with open_listener("127.0.0.1", 0, reuse_port=True) as first:
        port = first.getsockname()[1]
        open_listener("127.0.0.1", port, reuse_port=True).close()


def test_the_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindFailed, match="cannot be opened"):
        open_listener("192.0.2.1", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_socket_that_drops_handshakes_still_gives_its_queue(address: str) -> None:
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
