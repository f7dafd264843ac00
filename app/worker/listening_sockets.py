"""The listening sockets: opened before the fork, so that the ports answer from the first moment.

Source: docs/spec/server-options.md sections 2 (HTTP) and 6.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from core.errors import ErrorCode, ServerError

_BACKLOG = 4096


class BindFailed(ServerError):
    code = ErrorCode.UNAVAILABLE


def open_listener(address: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening TCP socket. Raises BindFailed."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BindFailed(f"Socket '{address}:{port}' cannot be opened: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BindFailed(f"Socket '{address}:{port}' already in use ") from error
        raise BindFailed(f"Socket '{address}:{port}' cannot be opened: {error}") from error
    return listener


def open_listeners(binds: Iterable[tuple[str, int]], *, reuse_port: bool = False) -> list[socket.socket]:
    """One listening socket per (address, port), or none of them and BindFailed."""
    listeners: list[socket.socket] = []
    try:
        for address, port in binds:
            listeners.append(open_listener(address, port, reuse_port=reuse_port))
    except BindFailed:
        for listener in listeners:
            listener.close()
        raise
    return listeners
