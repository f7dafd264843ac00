"""The listening sockets: opened before the fork, so that the ports answer from the first moment.

Source: docs/spec/server-options.md sections 2 (HTTP) and 6.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import socket
import struct
import sys
from collections.abc import Iterable

from core.errors import ErrorCode, ServerError

log = logging.getLogger("trident.server")

_BACKLOG = 4096
# SO_ATTACH_FILTER, which the socket module does not name, and a classic BPF program that sees the segments of the
# listening socket from the TCP header on. It drops those that have SYN and not ACK among their flags.
_ATTACH_FILTER = 26
_DROP_SYN = (
    (0x30, 0, 0, 13),  # A = flags
    (0x54, 0, 0, 0x12),  # A &= SYN | ACK
    (0x15, 0, 1, 0x02),  # if A == SYN
    (0x06, 0, 0, 0),  # drop the segment
    (0x06, 0, 0, 0xFFFFFFFF),  # else keep it
)


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


def drop_handshakes(listener: socket.socket) -> None:
    """Let no further handshake begin, in all processes that share the socket. Those that have begun are completed.

    To close a listening socket resets the connections that nobody has accepted yet. Without new handshakes they can all
    be accepted first. A client that connects meanwhile repeats its SYN after a second, and is refused, or reaches the
    next server. Where the system has no such filter, the connections of the last moment are reset.
    """
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    memory = ctypes.create_string_buffer(program)
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(_DROP_SYN), ctypes.addressof(memory))
        )
    except OSError as error:
        log.debug("new connections cannot be held back at the stop: %s", error)
