"""A connected pair of sockets: one for a connection of the worker, one for its client, a greenlet of the test."""

from __future__ import annotations

import socket
from typing import Any

from gevent import socket as cooperative

LIMIT_S = 60.0


def socket_pair() -> tuple[socket.socket, Any]:
    """The worker's socket, which does not block, and the client's, which waits on the hub for at most LIMIT_S."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client = cooperative.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=theirs.detach())
    client.settimeout(LIMIT_S)
    return ours, client


def received(client: Any, size: int) -> bytes:
    """Exactly `size` bytes."""
    parts = b""
    while len(parts) < size:
        part = client.recv(size - len(parts))
        assert part, f"the connection ended after {len(parts)} of {size} bytes"
        parts += part
    return parts


def received_until_end(client: Any) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)
