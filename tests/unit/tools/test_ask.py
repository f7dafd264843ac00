"""Why a server that is asked did not answer in HTTP."""

from __future__ import annotations

import socket
import threading

import pytest

from trident.tools.ask import NoAnswer, ask

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""A frame of HTTP/2, with which a gRPC port begins."""


@pytest.mark.parametrize(
    ("answer", "scheme", "reason"),
    [
        (SETTINGS, "http", "this port speaks HTTP/2, as that of gRPC does: the HTTP port is 8000 by default"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "https",
            "this port speaks HTTP without TLS: begin the address with http://",
        ),
    ],
)
def test_the_wrong_port_or_scheme_is_named(answer: bytes, scheme: str, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection = server.accept()[0]
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(NoAnswer) as refusal:
            ask("GET", f"{scheme}://127.0.0.1:{server.getsockname()[1]}/v2")
        thread.join()
    assert str(refusal.value) == reason
