"""The open HTTP/2 connections of the worker: their clocks, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trident.app.worker.io import CoarseClock
from trident.core.grpc.transport import Application

if TYPE_CHECKING:
    from trident.app.worker.http2.connection import Http2Connection


class Http2Connections:
    """The connections through the worker's HTTP/2 listeners; `open` holds them. `applications` serve their streams.
    `last_end` is when one ended last, in seconds of the coarse clock. Hub thread only.

    There is no timer per connection or stream: `sweep()` visits every connection once per tick.
    """

    def __init__(self, clock: CoarseClock, room: int) -> None:
        """`room`: while the worker has more connections than this, idle ones make room for new ones."""
        self.clock = clock
        self.closing = False
        self.open: set[Http2Connection] = set()
        self.last_end = 0.0
        self.applications: list[Application] = []
        self._room = room

    def sweep(self, others: int = 0) -> None:
        """Advance the clock of each connection, which ends those that are too old or too slow; end those that have been
        idle longest if too many are open.

        `others` is the number of connections through the worker's other listeners.
        """
        for connection in list(self.open):
            connection.tick()
        too_many = len(self.open) + others - self._room
        if too_many > 0:
            idle = sorted(
                (connection for connection in self.open if connection.is_idle()),
                key=lambda connection: connection.idle_since,
            )
            for connection in idle[:too_many]:
                connection.make_room()

    def last_work(self) -> float:
        """When a connection last had a stream, in seconds of the coarse clock; now if one has."""
        if any(connection.has_streams() for connection in self.open):
            return self.clock.now
        return max(self.last_end, max((connection.idle_since for connection in self.open), default=0.0))

    def in_flight(self) -> int:
        """The number of connections with calls that are not completely answered."""
        return sum(connection.has_streams() for connection in self.open)

    def announce_end(self) -> None:
        """Do nothing: the clients are told by `close_idle`, as soon as they cannot begin another connection here."""

    def close_idle(self) -> None:
        """Take no more streams: each connection ends when the calls that its client has begun are answered."""
        self.closing = True
        for application in self.applications:
            application.begin_exit()
        for connection in list(self.open):
            connection.drain()
