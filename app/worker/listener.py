"""Accepts the connections of one listening socket."""

from __future__ import annotations

import errno
import socket
from typing import Any

from gevent.server import StreamServer

from trident.app.worker.listening_sockets import drop_handshakes


class Listener(StreamServer):  # type: ignore[misc]
    """Accepts while `may_accept()` is true, and calls `serve(sock, peer)` for each connection.

    The sockets that it passes on are the standard library's, in non-blocking mode, without a gevent wrapper.
    """

    def __init__(
        self, listener: socket.socket, serve: Any, may_accept: Any, *, alone: bool = True, spawns: bool = True
    ) -> None:
        """`alone` is false if other workers accept from the same socket. If `spawns`, `serve` gets a greenlet, after
        which the connection is closed; otherwise it is called on the hub, and the connection is its own."""
        super().__init__(listener, serve)
        self._spawns = spawns
        if not alone:
            self.max_accept = 1  # leave the next connection to a less busy worker
        self._may_accept = may_accept

    def full(self) -> bool:
        return not self._may_accept()

    def do_read(self) -> tuple[socket.socket, Any] | None:
        try:
            sock, peer = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.close()  # another worker, which shares the socket, has refused all connections
            return None
        sock.setblocking(False)
        return sock, peer

    def do_handle(self, *accepted: Any) -> None:
        if self._spawns:
            super().do_handle(*accepted)
        else:
            self._handle(*accepted)

    def refuse(self) -> None:
        """Refuse all further connections, also in the processes that share the socket, and close it."""
        if not self.closed:
            self.stop_accepting()
            self.socket.shutdown(socket.SHUT_RDWR)
            self.close()

    def drop_handshakes(self) -> None:
        """Accept only connections that have begun to be established, in all processes that share the socket."""
        if not self.closed:
            drop_handshakes(self.socket)

    def accept_queued(self) -> None:
        """Accept the connections that the kernel has established, while it may."""
        while not self.closed and not self.full() and (accepted := self.do_read()) is not None:
            self.do_handle(*accepted)

    def resume(self) -> None:
        """Accept again if a place is free."""
        if self.started and not self.full():
            self.start_accepting()
