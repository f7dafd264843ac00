"""The gunicorn worker of this project: greenlets for connections, native threads for all other work.

In a front end its hub drives the connection to the engine too.
Source: docs/architecture.md sections 3 and 5.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import gevent
from gevent.event import Event
from gevent.server import StreamServer
from gunicorn.workers.ggevent import GeventWorker

from trident.app.process.environment import (
    EXIT_FAILED,
    EXIT_NOT_DRAINED,
    IdleTrim,
    keep_freed_memory,
    share_interpreter_lock,
)
from trident.app.process.stray_output import log_hub_failures
from trident.app.sites.site import Site
from trident.app.worker.connection import CROWDED, CoarseClock, Connections
from trident.app.worker.http1.connection import Http1Connection, Http1Service
from trident.app.worker.listening_sockets import StopTimes, drop_handshakes, notice_dead_clients
from trident.app.worker.tls import TlsSocket
from trident.core.borders import guarded
from trident.core.buffers import release_buffers
from trident.core.frontend.gevent_bridge import GreenletMailbox, Inbox
from trident.core.observability.log import reopen_log_if_asked
from trident.core.waiting import Mailbox, ThreadMailbox

if TYPE_CHECKING:
    from trident.app.worker.http2.connection import Http2Connection, Http2Service
    from trident.core.remote.engine_client import RemoteEngine

log = logging.getLogger("trident.server")

_TICK_S = 0.5
# Those for which gunicorn's worker sets handlers.
_OWN_HANDLERS = (signal.SIGABRT, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)
# Signals for the arbiter, which terminals and some supervisors send to all processes of a server.
_FOR_THE_ARBITER = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


class TridentWorker(GeventWorker):  # type: ignore[misc]
    """Serves the site that its application makes.

    It differs from `GeventWorker`: nothing is monkey-patched; `http1.request` parses requests; a sweep enforces
    the timeouts; SIGTERM starts `shut_down`; SIGINT, SIGHUP and SIGUSR2 are ignored.
    """

    site: Site
    sockets: list[Any]
    wsgi: Any
    # gunicorn resets these before it sets its own handlers. The stop signals keep theirs until then: a stop that
    # arrives in between would end the worker without draining.
    SIGNALS = tuple(number for number in GeventWorker.SIGNALS if number not in _OWN_HANDLERS)

    def patch(self) -> None:
        """Unwrap the listening sockets, instead of monkey-patching the process."""
        listeners: list[Any] = self.sockets
        self.sockets = [listener.sock for listener in listeners]

    def init_process(self) -> None:
        keep_freed_memory()
        share_interpreter_lock()
        self._stop = Event()
        self._stop_asked: Any = None
        super().init_process()

    def init_signals(self) -> None:
        super().init_signals()
        for number in _FOR_THE_ARBITER:
            signal.signal(number, signal.SIG_IGN)

    def load_wsgi(self) -> None:
        """Make the site, after the fork: inference sessions must not exist before it."""
        self.site = self.app.make_site()

    def handle_usr1(self, sig: int, frame: Any) -> None:
        """SIGUSR1: reopen the log file, which was moved. At once; gevent's handler would start a greenlet."""
        self.log.reopen_files()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: ask the main greenlet to stop. `send` is safe at any point at which a signal may arrive."""
        self.alive = False
        if self._stop_asked is not None:
            self._stop_asked.send()

    def run(self) -> None:
        """Serve until SIGTERM. Ends the process with status 0, EXIT_NOT_DRAINED or EXIT_FAILED."""
        hub = gevent.get_hub()
        log_hub_failures(hub)
        self._stop_asked = hub.loop.async_()
        self._stop_asked.start(self._stop.set)
        self._clock = CoarseClock()
        self._idle_trim = IdleTrim(self._release_memory)
        max_connections = int(self.worker_connections)
        self._ports, self._last_ports = (
            Ports([], Connections(self._clock, self.app.limits, max_connections)) for _ in range(2)
        )
        self._http2_ports = Ports([], Connections(self._clock, self.app.limits, max_connections))
        if self.site.http2_ports:
            # Imported for servers with gRPC only, here and in `_listen`.
            from trident.app.worker.http2.connection import Http2Connections

            self._http2_ports = Ports([], Http2Connections(self._clock, int(max_connections * CROWDED)))
        for listener in self.sockets:
            self._listen(listener)
        self.site.start()
        for each in self._listeners():
            each.start()
        times: StopTimes = self.app.stop_times
        while self.alive and not self._stop.is_set():
            self._tick()
            if self.site.failure is not None:
                self.app.failure_note.write(self.site.failure)
                for each in self._listeners():
                    each.refuse()
                self._shut_down(replace(times, drain_grace_s=0.0))
                sys.exit(EXIT_FAILED)
            self._stop.wait(_TICK_S)
        if self._is_orphan():
            times = replace(times, drain_grace_s=0.0)  # a new server needs the ports
        sys.exit(0 if self._shut_down(times) else EXIT_NOT_DRAINED)

    def _listen(self, listener: socket.socket) -> None:
        name, is_alone = listener.getsockname(), self.cfg.workers == 1
        port = int(name[1]) if isinstance(name, tuple) else 0
        http2 = self.site.http2_ports.get(port)
        if http2 is not None:
            from trident.app.worker.http2.connection import Http2Connection, Http2Service

            notice_dead_clients(listener)
            serve = partial(_serve_http2, Http2Connection, Http2Service(http2, self._http2_ports.connections))
            accepting = Listener(listener, serve, self._may_accept, alone=is_alone, spawns=False)
            self._http2_ports.listeners.append(accepting)
            return
        ports = self._last_ports if port in self.app.last_ports else self._ports
        service = Http1Service(
            self.site.applications[port],
            name,
            self.cfg,
            ports.connections,
            self.site.allocate,
            self.site.tls.get(port),
        )
        ports.listeners.append(Listener(listener, partial(_serve, service), self._may_accept, alone=is_alone))

    def _all_ports(self) -> tuple[Ports, ...]:
        return (self._ports, self._http2_ports, self._last_ports)

    def _listeners(self) -> list[Listener]:
        return [listener for ports in self._all_ports() for listener in ports.listeners]

    def _may_accept(self) -> bool:
        return self._open_connections() < int(self.worker_connections)

    def _open_connections(self) -> int:
        return sum(len(ports.connections.open) for ports in self._all_ports())

    def _is_orphan(self) -> bool:
        return os.getppid() != int(self.ppid)

    def _tick(self) -> None:
        if self._is_orphan():
            self._stop.set()  # without an arbiter nothing would restart or stop it
        self._clock.tick()
        reopen_log_if_asked()
        self.tmp.notify()  # not `self.notify`, which ends an orphan at once, with its requests in flight
        for ports in self._all_ports():
            ports.connections.sweep(self._open_connections() - len(ports.connections.open))
        last_work = max(ports.connections.last_work() for ports in self._all_ports())
        self._idle_trim.tick(self._clock.now, last_work)
        for listener in self._listeners():
            listener.resume()

    def _release_memory(self) -> None:
        self.site.release_memory()
        release_buffers()

    def _shut_down(self, times: StopTimes) -> bool:
        first_ports = (self._http2_ports, self._ports)
        return shut_down(self.site, first_ports, self._last_ports, times, self._tick)


def _serve(service: Http1Service, sock: socket.socket, peer: Any) -> None:
    if service.tls is None:
        Http1Connection(sock, peer, service).serve()
        return
    try:
        secured = TlsSocket(sock, service.tls.context)
    except OSError as error:
        log.debug("a client has gone before its connection began: %s", error)
        sock.close()
    else:
        Http1Connection(secured, peer, service).serve()


def _serve_http2(make: type[Http2Connection], service: Http2Service, sock: socket.socket, peer: Any) -> None:
    try:
        make(sock, peer, service)
    except OSError as error:
        log.debug("a client has gone before its connection began: %s", error)
        sock.close()


# --- the connections of one listening socket


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

    def resume(self) -> None:
        """Accept again if another connection is allowed."""
        if self.started and not self.full():
            self.start_accepting()


# --- the graceful stop. Source: docs/spec/server-options.md section 5, docs/spec/http.md section 11. There is one
# intended difference: between becoming unready and closing the listeners the worker serves for a grace period, so that
# a load balancer can notice; each answer of HTTP/1.1 is then the last of its connection. Every connection that was
# established before a listener closes gets its answer. The metrics port, which shows the progress of the drain, closes
# last.

_STEP_S = 0.05
# From the last new handshake until the listeners close: the last handshakes take the time of a round trip.
_LAST_HANDSHAKES_S = 0.2
# For the responses on the ports that close last: they are short, and an unfinished one is not a loss.
_LAST_S = 1.0


class Ports(NamedTuple):
    """Listeners, and the Connections or Http2Connections that they accepted."""

    listeners: list[Any]
    connections: Any

    def drop_handshakes(self) -> None:
        """Let no more connections be established; those that are, or almost are, are still accepted."""
        for listener in self.listeners:
            listener.drop_handshakes()

    def close(self) -> None:
        """Accept established connections, then no more connections, and no more requests on the open ones."""
        for listener in self.listeners:
            while not listener.closed and not listener.full() and (accepted := listener.do_read()) is not None:
                listener.do_handle(*accepted)
            listener.close()
        gevent.sleep(0)  # the greenlets of the last connections start and add themselves to `connections`
        self.connections.close_idle()


def shut_down(
    site: Site, ports: Sequence[Ports], last_ports: Ports, times: StopTimes, tick: Callable[[], None]
) -> bool:
    """Stop gracefully, in the worker's main greenlet; `tick`, called about every second, keeps the worker alive.

    `ports` close first; `last_ports` close when all requests through the others are answered and the site has finished.
    Returns True if all requests in flight were answered, False if the exit timeout ended first.
    """
    next_tick = 0.0

    def wait(until: float, is_done: Callable[[], bool], report: Callable[[int], None] | None = None) -> bool:
        """Continue to serve until `is_done()` or the monotonic time `until`. Returns True once it is done."""
        nonlocal next_tick
        while not is_done():
            now = time.monotonic()
            if now >= until:
                return False
            if now >= next_tick:
                next_tick = now + 1.0
                tick()
                if report is not None:
                    report(round(until - now))
            gevent.sleep(min(_STEP_S, until - now))
        return True

    def close(*closing: Ports) -> None:
        for each in closing:
            each.drop_handshakes()
        has_listeners = any(each.listeners for each in closing)
        wait(time.monotonic() + _LAST_HANDSHAKES_S, lambda: not has_listeners)
        for each in closing:
            each.close()

    def in_flight() -> int:
        return sum(each.connections.in_flight() for each in ports)

    def report(seconds_left: int) -> None:
        if count := in_flight():
            log.info("Timeout %d: Found %d connections with requests in flight", seconds_left, count)
        site.log_in_flight(seconds_left)

    site.begin_exit()
    for each in ports:
        each.connections.announce_end()
    wait(time.monotonic() + times.drain_grace_s, lambda: False)
    close(*ports)
    deadline = time.monotonic() + times.exit_timeout_s
    drained = wait(deadline, lambda: not any(each.connections.open for each in ports), report) or not in_flight()
    finished = gevent.get_hub().threadpool.spawn(site.finish, max(0.0, deadline - time.monotonic()))
    # The engine waits for the same time. One more second lets it report first.
    wait(deadline + 1.0, finished.ready)
    drained = bool(finished.ready() and finished.get()) and drained
    close(last_ports)
    wait(time.monotonic() + _LAST_S, lambda: not last_ports.connections.open)
    if not drained:
        log.error("Exit timeout expired. Exiting immediately.")
    return drained


# --- the connection to the engine, without a thread between its socket and the greenlets. Frames are collected and
# flushed once per iteration of the hub's loop.

_READ = 1
_WRITE = 2
_LOOK_SECONDS = 0.05


class GeventLink:
    """Made on the hub's thread. Any thread may call `wake` and `mailbox`."""

    def __init__(self) -> None:
        hub = gevent.get_hub()
        self._loop = hub.loop
        self._thread_id = get_ident()
        self._engine: RemoteEngine | None = None
        self._watched: Any = None
        self._readable: Any = None
        self._writable: Any = None
        self._inbox = Inbox(hub)
        self._is_flush_due = False
        self._timer = self._loop.timer(_LOOK_SECONDS, _LOOK_SECONDS)

    def start(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._timer.start(self._look)
        self._look()

    def wake(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._inbox.put(self._flush)

    def mailbox(self) -> Mailbox[Any]:
        return GreenletMailbox(self._inbox) if get_ident() == self._thread_id else ThreadMailbox()

    def close(self) -> None:
        """Call it on the hub's thread."""
        self._engine = None
        self._unwatch()
        self._timer.stop()
        self._timer.close()
        self._inbox.close()

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._engine is not None:
            guarded(self._engine.flush, "sending to the engine")
            self._watch()

    def _read(self) -> None:
        if self._engine is not None:
            guarded(self._engine.read, "reading from the engine")
            self._watch()

    def _look(self) -> None:
        if self._engine is not None:
            guarded(self._engine.look, "looking for the engine")
            self._watch()

    def _watch(self) -> None:
        """Watch the connection's current socket, for writing too while the connection has unsent bytes."""
        engine = self._engine
        if engine is None:
            return
        sock = engine.sock
        if sock is not self._watched:
            self._unwatch()
            self._watched = sock
            if sock is not None:
                # With priority over the clients: a client must not see a state older than the answer it has received.
                self._readable = self._loop.io(sock.fileno(), _READ, priority=self._loop.MAXPRI)
                self._readable.start(self._read)
        if sock is not None and engine.wants_to_write:
            if self._writable is None:
                self._writable = self._loop.io(sock.fileno(), _WRITE)
                self._writable.start(self._flush)
        elif self._writable is not None:
            self._writable = _close(self._writable)

    def _unwatch(self) -> None:
        self._watched = None
        self._readable = _close(self._readable)
        self._writable = _close(self._writable)


def _close(watcher: Any) -> Any:
    """Close the watcher. Returns None, to replace it."""
    if watcher is not None:
        watcher.stop()
        watcher.close()
    return None
