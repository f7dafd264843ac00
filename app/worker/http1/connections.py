"""The open connections of the worker, and the timeouts that end them."""

from __future__ import annotations

from app.worker.clock import CoarseClock
from app.worker.http1.connection import Connection, Phase
from app.worker.http1.limits import ConnectionLimits

_LINGER_S = 2.0
# How long a client that sends or reads slowly may have memory that the engine shares.
_SHARED_S = 2.0
# Above this share of the places, idle connections make room for new ones, the longest idle first.
_CROWDED = 0.9


class Connections:
    """All connections of one worker. Hub thread only.

    There is no timer per request: `sweep()` looks at every connection once per tick, 0.1 microseconds each.
    """

    def __init__(self, clock: CoarseClock, limits: ConnectionLimits, places: int) -> None:
        self.clock = clock
        self.limits = limits
        self.closing = False
        self._open: set[Connection] = set()
        self._room = int(places * _CROWDED)
        self._patience = {
            Phase.IDLE: limits.keepalive_s,
            Phase.HEAD: limits.request_timeout_s,
            Phase.BODY: limits.request_timeout_s,
            Phase.SEND: limits.request_timeout_s,
            Phase.LINGER: _LINGER_S,
        }

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        self._open.add(connection)

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)

    def sweep(self, others: int = 0) -> None:
        """End the connections that were patient too long, and idle ones if places become scarce, of which `others`
        elsewhere take so many.

        Those that have been slow for a while must make room for others in the memory that the engine shares.
        """
        now = self.clock.now
        for connection in self._open:
            patience = self._patience.get(connection.phase)
            if patience is not None and now - connection.since > patience:
                connection.time_out()
            elif now - connection.moves_since > _SHARED_S:
                connection.leave_shared()
        too_many = len(self._open) + others - self._room
        if too_many > 0:
            idle = sorted(self._idle(), key=lambda connection: connection.since)
            for connection in idle[:too_many]:
                connection.hang_up()

    def last_work(self) -> float:
        """When one of the connections last served a request, in seconds of the coarse clock; now, if one does."""
        if any(connection.phase is not Phase.IDLE for connection in self._open):
            return self.clock.now
        return max((connection.since for connection in self._open), default=0.0)

    def in_flight(self) -> int:
        """How many have a request that is not wholly answered, once idle ones were told to close."""
        return sum(connection.phase not in (Phase.LINGER, Phase.ENDED) for connection in self._open)

    def close_idle(self) -> None:
        """From now on every answer is the last of its connection; those that wait for a request are closed at once."""
        self.closing = True
        for connection in self._open:
            if connection.phase is Phase.HEAD or (connection.phase is Phase.IDLE and not connection.has_input()):
                connection.hang_up()

    def _idle(self) -> list[Connection]:
        return [connection for connection in self._open if connection.phase is Phase.IDLE]
