"""The graceful stop of a worker.

Source: docs/spec/server-options.md section 5, docs/spec/http.md section 11. There is one intended difference: between
becoming unready and closing the listeners the worker serves for a grace period, so that a load balancer can notice;
each answer of HTTP/1.1 is then the last of its connection. Every connection that was established before a listener
closes gets its answer. The metrics port, which shows the progress of the drain, closes last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import gevent

from trident.app.sites.site import Site
from trident.app.worker.limits import StopTimes

log = logging.getLogger("trident.server")

_STEP_S = 0.05
# From the last new handshake until the listeners close: the last handshakes take the time of a round trip.
_LAST_HANDSHAKES_S = 0.2
# For the responses on the ports that close last: they are short, and an unfinished one is no loss.
_LAST_S = 1.0


class OpenConnections(Protocol):
    """The connections of one protocol (Connections, Http2Connections). Hub thread only."""

    open: set[Any]

    def sweep(self, others: int = 0) -> None:
        """End the connections that are too slow, and idle ones if too many are open. `others` are the worker's other
        connections."""

    def last_work(self) -> float:
        """When a request was last served, in seconds of the coarse clock."""

    def in_flight(self) -> int:
        """The number of connections that wait for an answer, after `close_idle`."""

    def announce_end(self) -> None:
        """Tell the clients with each answer that the server stops, where the protocol can."""

    def close_idle(self) -> None:
        """Take no more requests, but those that their clients have sent already."""


C = TypeVar("C", bound=OpenConnections)


class Ports(NamedTuple, Generic[C]):
    """Listeners, and the connections that they accepted."""

    listeners: list[Any]
    connections: C

    def drop_handshakes(self) -> None:
        """Let no more connections be established; those that are, or almost are, are still accepted."""
        for listener in self.listeners:
            listener.drop_handshakes()

    def close(self) -> None:
        """Accept what is established, then no more connections, and no more requests on the open ones."""
        for listener in self.listeners:
            listener.accept_queued()
            listener.close()
        gevent.sleep(0)  # the greenlets of the last connections start and add themselves to `connections`
        self.connections.close_idle()


class Shutdown:
    """One stop. Runs in the worker's main greenlet, and calls `tick` about every second to keep the worker alive.

    `ports` close first; `last_ports` close when all requests through the others are answered and the site has finished.
    """

    def __init__(
        self,
        site: Site,
        ports: Sequence[Ports[Any]],
        last_ports: Ports[Any],
        times: StopTimes,
        tick: Callable[[], None],
    ) -> None:
        self._site = site
        self._ports = ports
        self._last_ports = last_ports
        self._times = times
        self._tick = tick
        self._next_tick = 0.0

    def run(self) -> bool:
        """Returns True if all requests in flight were answered, False if the exit timeout ended first."""
        self._site.begin_exit()
        for ports in self._ports:
            ports.connections.announce_end()
        self._wait(time.monotonic() + self._times.drain_grace_s, lambda: False)
        self._close(*self._ports)
        deadline = time.monotonic() + self._times.exit_timeout_s
        drained = self._wait(deadline, lambda: not any(ports.connections.open for ports in self._ports), self._report)
        drained = drained or not self._in_flight()
        drained = self._finish_site(deadline) and drained
        self._close(self._last_ports)
        self._wait(time.monotonic() + _LAST_S, lambda: not self._last_ports.connections.open)
        if not drained:
            log.error("Exit timeout expired. Exiting immediately.")
        return drained

    def _close(self, *all_ports: Ports[Any]) -> None:
        for ports in all_ports:
            ports.drop_handshakes()
        has_listeners = any(ports.listeners for ports in all_ports)
        self._wait(time.monotonic() + _LAST_HANDSHAKES_S, lambda: not has_listeners)
        for ports in all_ports:
            ports.close()

    def _finish_site(self, deadline: float) -> bool:
        remaining = max(0.0, deadline - time.monotonic())
        finished = gevent.get_hub().threadpool.spawn(self._site.finish, remaining)
        # The engine waits for the same time. One more second lets it report first.
        self._wait(deadline + 1.0, finished.ready)
        return bool(finished.ready() and finished.get())

    def _wait(self, until: float, is_done: Callable[[], bool], report: Callable[[int], None] | None = None) -> bool:
        """Continue to serve until `is_done()` or the monotonic time `until`. Returns whether it was done."""
        while not is_done():
            now = time.monotonic()
            if now >= until:
                return False
            if now >= self._next_tick:
                self._next_tick = now + 1.0
                self._tick()
                if report is not None:
                    report(round(until - now))
            gevent.sleep(min(_STEP_S, until - now))
        return True

    def _in_flight(self) -> int:
        return sum(ports.connections.in_flight() for ports in self._ports)

    def _report(self, seconds_left: int) -> None:
        in_flight = self._in_flight()
        if in_flight:
            log.info("Timeout %d: Found %d connections with requests in flight", seconds_left, in_flight)
        self._site.log_in_flight(seconds_left)
