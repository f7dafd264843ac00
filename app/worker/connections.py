"""The open connections of the worker, and the timeouts that end them."""

from __future__ import annotations

from typing import Final

from app.worker.clock import CoarseClock
from app.worker.connection import Connection
from app.worker.limits import ConnectionLimits
from app.worker.phase import Phase

_LINGER_S: Final = 2.0
# How long the first request of a connection may take to arrive after the server has begun to close.
_FIRST_REQUEST_S: Final = 2.0
_WAITING: Final = (Phase.HANDSHAKE, Phase.NEW, Phase.IDLE)
# As for HTTP/2 (app/worker/http2/limits.py).
_HANDSHAKE_S: Final = 20.0
_NO_REQUEST: Final = (Phase.HANDSHAKE, Phase.NEW, Phase.LINGER, Phase.ENDED)
# How long a client that sends or reads slowly may occupy memory shared with the engine.
_SHARED_S: Final = 2.0
# Above this share of the places the connections that have been idle longest make room for new ones.
CROWDED: Final = 0.9


class Connections:
    """The connections through some of the worker's listeners; `open` holds them. Hub thread only.

    `last_end` is when one ended last, in seconds of the coarse clock.
    There is no timer per request: `sweep()` visits every connection once per tick, 0.1 microseconds each.
    """

    def __init__(self, clock: CoarseClock, limits: ConnectionLimits, places: int) -> None:
        self.clock = clock
        self.limits = limits
        self.closing = False
        self.ending = False
        self.open: set[Connection] = set()
        self.last_end = 0.0
        self._room = int(places * CROWDED)
        self._timeouts = {
            Phase.HANDSHAKE: _HANDSHAKE_S,
            Phase.NEW: limits.keepalive_s,
            Phase.IDLE: limits.keepalive_s,
            Phase.HEAD: limits.request_timeout_s,
            Phase.BODY: limits.request_timeout_s,
            Phase.SEND: limits.request_timeout_s,
            Phase.LINGER: _LINGER_S,
        }

    def sweep(self, others: int = 0) -> None:
        """End the connections that have timed out, and idle ones if too many are open; move slow ones out of shared
        memory.

        `others` is the number of connections through the worker's other listeners.
        """
        now = self.clock.now
        for connection in self.open:
            timeout = self._timeouts.get(connection.phase)
            if timeout is not None and now - connection.since > timeout:
                connection.time_out()
            elif now - connection.moves_since > _SHARED_S:
                connection.leave_shared()
        too_many = len(self.open) + others - self._room
        if too_many > 0:
            idle = sorted(self._idle(), key=lambda connection: connection.since)
            for connection in idle[:too_many]:
                connection.hang_up()

    def last_work(self) -> float:
        """When a connection last served a request, in seconds of the coarse clock; now if one does so now."""
        if any(connection.phase not in _WAITING for connection in self.open):
            return self.clock.now
        return max(self.last_end, max((connection.since for connection in self.open), default=0.0))

    def in_flight(self) -> int:
        """The number of connections whose request is not completely answered, after `close_idle`."""
        return sum(connection.phase not in _NO_REQUEST for connection in self.open)

    def announce_end(self) -> None:
        """Make every response from now on the last of its connection, so that clients begin another elsewhere."""
        self.ending = True

    def close_idle(self) -> None:
        """Also close the connections that wait for another request.

        A new connection has a moment to send its first one, which its client could not know to repeat.
        """
        self.closing = self.ending = True
        self._timeouts[Phase.NEW] = self._timeouts[Phase.HANDSHAKE] = _FIRST_REQUEST_S
        for connection in self.open:
            if connection.phase is Phase.HEAD or (connection.phase is Phase.IDLE and not connection.has_input()):
                connection.hang_up()

    def _idle(self) -> list[Connection]:
        return [connection for connection in self.open if connection.phase in _WAITING]
