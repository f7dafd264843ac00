"""What the HTTP/2 connections through one listener share."""

from __future__ import annotations

from random import uniform
from typing import TYPE_CHECKING, Final

import gevent

from app.sites.site import Http2Port
from app.worker.http2.connections import Http2Connections
from app.worker.http2.unsent_total import UnsentTotal

if TYPE_CHECKING:
    from app.worker.http2.connection import Http2Connection


# What may be received behind the rest of a large frame: the head of the next one above all.
_BEHIND: Final = 4096


class Http2Service:
    """One application on one listening address, and the connections whose answers wait to be sent. Hub thread only.

    The answers of one iteration of the hub's loop are sent together: a client of many calls is woken once for all of
    theirs, and one of many connections stays awake between them.
    """

    def __init__(self, port: Http2Port, connections: Http2Connections) -> None:
        self.port = port
        self.connections = connections
        connections.applications.append(port.application)
        self.clock = connections.clock
        self.unsent = UnsentTotal(port.limits.unsent_in_all)
        self.behind = memoryview(bytearray(_BEHIND))
        self._loop = gevent.get_hub().loop
        self._due: dict[Http2Connection, None] = {}

    def longest_life_s(self) -> float:
        """How long a new connection may live: up to a tenth more or less than the port says, because connections that
        began together must not all come back at the same moment, as in gRPC."""
        return self.port.max_age_s * uniform(0.9, 1.1)

    def flush_soon(self, connection: Http2Connection) -> None:
        """Have `connection` send what it has, after everything else that is ready now."""
        if not self._due:
            self._loop.run_callback(self._flush)
        self._due[connection] = None

    def _flush(self) -> None:
        due, self._due = self._due, {}
        for connection in due:
            connection.flush()
