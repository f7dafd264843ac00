"""The listening sockets: opened before the fork, so that the ports answer from the first moment.

Source: docs/spec/server-options.md sections 2 (HTTP) and 6.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trident.core.errors import ErrorCode, ServerError
from trident.core.options import MAX_UNFINISHED

if TYPE_CHECKING:
    from trident.app.settings.server import Service

log = logging.getLogger("trident.server")

_BACKLOG = 4096
_UNIX = "unix:"
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
# Seconds of silence, seconds between two probes, and probes without an answer.
_PROBES = {"TCP_KEEPIDLE": 600, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 5}


class BindFailed(ServerError):
    code = ErrorCode.UNAVAILABLE


def open_listener(address: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket. A Unix socket that a server left behind at the path is replaced. Raises BindFailed."""
    is_unix = address.startswith(_UNIX)
    name = address if is_unix else f"{address}:{port}"
    listener: socket.socket | None = None
    try:
        if is_unix:
            path = address.removeprefix(_UNIX)
            if path.startswith("//"):  # as gRPC's clients may write it: unix:///path
                path = path[2:]
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if _is_abandoned(path):
                os.unlink(path)
            listener.bind(path)
        else:
            family, kind, protocol, _, target = socket.getaddrinfo(
                address.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(target)
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BindFailed(f"Socket '{name}' already in use ") from error
        raise BindFailed(f"Socket '{name}' cannot be opened: {error}") from error
    return listener


def _is_abandoned(path: str) -> bool:
    """True if a socket is at `path` and no process listens on it."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(path) == errno.ECONNREFUSED


def open_listeners(services: Iterable[Service]) -> list[socket.socket]:
    """One listening socket per service, or none of them and BindFailed, which names who has the port and what to do."""
    listeners: list[socket.socket] = []
    for service in services:
        try:
            listeners.append(open_listener(service.address, service.port, reuse_port=service.reuses_port))
        except BindFailed as error:
            for listener in listeners:
                close_listener(listener)
            error.hint = _cure(service, error)
            raise
    return listeners


def _cure(service: Service, error: BindFailed) -> str:
    if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
        return f"choose another with {service.option}"
    owner = owner_of(service.port) if service.port else ""
    stop = f"{owner} has it: stop that process" if owner else "stop the process that has it"
    return f"{stop}, or choose another with {service.option}"


def close_listener(listener: socket.socket) -> None:
    """Close a socket that this process opened, and remove a Unix socket's file."""
    if listener.family == socket.AF_UNIX:
        os.unlink(listener.getsockname())
    listener.close()


def notice_dead_clients(listener: socket.socket) -> None:
    """Have the kernel probe silent connections through `listener`, and end those whose client's machine has gone.

    HTTP/2 connections may be idle for as long as they like. The sockets that a listener accepts inherit its options.
    """
    if listener.family == socket.AF_UNIX:
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def drop_handshakes(listener: socket.socket) -> None:
    """Let no further handshake begin, in all processes that share the socket. Those that have begun are completed.

    Closing a listening socket resets the connections that were not accepted yet. Without new handshakes they can all
    be accepted first. A client that connects meanwhile repeats its SYN after a second, and is refused, or reaches the
    next server. Where the system has no such filter, the connections of the last moment are reset.
    """
    if sys.platform != "linux" or listener.family == socket.AF_UNIX:
        return
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    memory = ctypes.create_string_buffer(program)
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(_DROP_SYN), ctypes.addressof(memory))
        )
    except OSError as error:
        log.debug("new connections cannot be held back at the stop: %s", error)


_PROC = Path("/proc")
_LISTENING = "0A"
_LONGEST_COMMAND = 80


def owner_of(port: int, proc: Path = _PROC) -> str:
    """The process that listens on `port`, as `COMMAND (pid N)`; empty if it belongs to another user or container.

    The options of the command are left out: they may have secrets.
    """
    sockets: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for row in map(str.split, (proc / "net" / name).read_text().splitlines()[1:]):
                if len(row) > 9 and row[1].endswith(f":{port:04X}") and row[3] == _LISTENING:
                    sockets.add(f"socket:[{row[9]}]")  # its inode
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)) if sockets else ():
        with suppress(OSError):
            for entry in (process / "fd").iterdir():
                with suppress(OSError):  # closed in the meantime
                    if os.readlink(entry) in sockets:
                        return f"{_command(process)} (pid {process.name})"
    return ""


def _command(process: Path) -> str:
    """The words of a command before its first option, or the name of a process that has none. Raises OSError."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    first = next((index for index, word in enumerate(words) if index and word.startswith("-")), len(words))
    return " ".join(filter(None, words[:first]))[:_LONGEST_COMMAND] or (process / "comm").read_text().strip()


# --- limits of a connection and of a stop, in seconds and bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """Seconds of unready service before the listeners close, and then seconds for the requests in flight."""

    drain_grace_s: float = 0.0
    exit_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of every connection, and `max_unfinished_size`, that of UnfinishedBodies, for all of them.

    A client that sends no byte of a request it began, or reads no byte of its response, for `request_timeout_s` is
    disconnected; a request head must be complete within that time. An idle connection is closed after `keepalive_s`.
    """

    request_timeout_s: float = 60.0
    keepalive_s: float = 600.0
    max_unfinished_size: int = MAX_UNFINISHED
