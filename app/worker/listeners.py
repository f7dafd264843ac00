"""The listening sockets: opened before the fork, so that the ports answer from the first moment.

Source: docs/spec/server-options.md sections 2 (HTTP) and 6.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterable, Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gevent.server import StreamServer

from core.errors import ErrorCode, ServerError

_BACKLOG = 4096
_RESERVED_FILES = 512
_MAX_PLACES = 100_000


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


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one. Returns the places for connections that leaves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return _MAX_PLACES
    return max(64, min(_MAX_PLACES, hard - _RESERVED_FILES))


class Listener(StreamServer):  # type: ignore[misc]
    """Accepts on one socket while `has_place()`; each connection gets a greenlet that runs `serve(sock, peer)`.

    The sockets it hands on are the standard library's and do not block: nothing of gevent wraps them.
    """

    def __init__(self, listener: socket.socket, serve: Any, has_place: Any, *, alone: bool = True) -> None:
        super().__init__(listener, serve)
        if not alone:
            self.max_accept = 1  # leave the next connection to whoever has less to do
        self._has_place = has_place

    def full(self) -> bool:
        return not self._has_place()

    def do_read(self) -> tuple[socket.socket, Any] | None:
        try:
            sock, peer = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        sock.setblocking(False)
        return sock, peer

    def refuse(self) -> None:
        """Stop listening for good, in the arbiter too, which holds the same socket: connections are refused."""
        self.socket.shutdown(socket.SHUT_RDWR)

    def resume(self) -> None:
        """Accept again after a time without places."""
        if self.started and not self.full():
            self.start_accepting()


class PortDispatcher:
    """The WSGI callable of several ports: chooses the application by `SERVER_PORT`.

    The worker of this project asks `application_for` once per listener instead.
    """

    def __init__(self, applications: Mapping[int, WSGIApplication]) -> None:
        self._applications = {str(port): application for port, application in applications.items()}

    def application_for(self, port: int) -> WSGIApplication:
        """The application of a port. Raises LookupError if there is none."""
        return self._applications[str(port)]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._applications[environ["SERVER_PORT"]](environ, start_response)
