"""One HTTP/2 connection: its socket on the hub, between the wire and the protocol.

Nothing waits here: the hub calls when the socket has bytes or room, and the protocol calls when it has something to
send. So a connection costs no greenlet, and an answer no switch.

Source: docs/architecture.md section 3; RFC 9113.
"""

from __future__ import annotations

import logging
import socket
from random import uniform
from typing import Any, Final

import gevent

from trident.app.sites.site import Http2Port
from trident.app.worker.connection import CoarseClock, ReadOrder, Stage
from trident.app.worker.http2.frames import NEVER, Http2Code, ProtocolError
from trident.app.worker.http2.protocol import Http2Protocol
from trident.app.worker.http2.streams import Outbox, UnsentTotal, copy_of
from trident.app.worker.tls import HTTP2, TlsSocket
from trident.core.borders import guarded
from trident.core.grpc.transport import Application
from trident.core.inference.tensors import Buffer, drop_sent

log: Final = logging.getLogger("trident.grpc")

_OPEN: Final = Stage.APPLICATION
_LINGER: Final = Stage.LINGER
_READ: Final = 1
_WRITE: Final = 2
_RECEIVE_SIZE: Final = 65536
# As for HTTP/1: up to this size joining is cheaper than an iovec.
_MAX_JOINED: Final = 16384
_IOV_MAX: Final = 1024
# How often waiting data of the streams is sent in a row before other connections are served.
_BURSTS: Final = 4
# How long a client may take to read the end of the connection, and how much it may send meanwhile.
_LINGER_S: Final = 2.0
_MAX_DISCARDED: Final = 64 << 20
# How long a client that sends or reads slowly may occupy memory shared with the engine; twice that at most.
_SHARED_S: Final = 2.0


class Http2Connection:
    """Serves one socket until its end. Hub thread only, and never in a greenlet: no call may block.

    `stage` is NEW during the TLS handshake, APPLICATION while streams may begin, LINGER after the last byte was sent,
    and ENDED. `idle_since` is when it was last seen with a stream, in seconds of the coarse clock.
    """

    def __init__(self, sock: socket.socket, peer: Any, service: Http2Service) -> None:
        """`sock` is connected and does not block. Raises OSError if the client has gone."""
        port = service.port
        self._service = service
        self._tls = TlsSocket(sock, port.tls.context) if port.tls is not None else None
        self._sock: socket.socket | TlsSocket = self._tls or sock
        now = service.clock.now
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        self._protocol = Http2Protocol(port.limits, port.application, self._flush_soon, now, name, service.unsent)
        self._unsent: list[Buffer] = []
        self._unsent_size = 0
        self._since = self.idle_since = self._left_shared = now
        # How long a new connection may live: up to a tenth more or less than the port says, because connections that
        # began together must not all come back at the same moment, as in gRPC.
        self._ages_at = now + service.port.max_age_s * uniform(0.9, 1.1)
        self._dies_at = NEVER
        self._discarded = 0
        self._is_draining = False
        self.stage = Stage.NEW if self._tls is not None else Stage.APPLICATION
        loop = gevent.get_hub().loop
        self._writable: Any = None
        self._readable: Any = loop.io(sock.fileno() if self._tls is None else self._tls.fileno(), _READ)
        self._reads = True
        self._readable.start(service.connections.order.add, self._on_readable)
        service.connections.open.add(self)
        if service.connections.closing:
            self.drain()

    # Called by the hub

    def _on_readable(self) -> None:
        if self.stage is Stage.ENDED:  # since the socket became readable
            return
        try:
            if self.stage is _LINGER:
                received = len(self._sock.recv(_RECEIVE_SIZE))
                self._discarded += received
                if not received or self._discarded > _MAX_DISCARDED:
                    self.close()
            else:
                self._read()
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
        except ProtocolError as fault:
            log.info("the connection of %s ends: %s", self._protocol.table.peer, fault)
            self._finish()
        except Exception:  # the request boundary: no exception of an application may end in the hub
            self._fail()

    def _on_writable(self) -> None:
        self._writable.stop()
        if self.stage is Stage.NEW:
            self._on_readable()
        else:
            self._push()

    def flush(self) -> None:
        """Send the protocol's output. The service calls this once per iteration of the loop."""
        if self._unsent_size:
            return
        outbox = self._protocol.outbox
        if self.stage is _OPEN and 0 < outbox.size <= _MAX_JOINED and not outbox.unsent and not self._is_draining:
            self._send_small(outbox)
        elif self.stage is _OPEN or self.stage is Stage.SEND:
            for _ in range(_BURSTS):
                self._unsent, self._unsent_size = outbox.take()
                self._push()
                if self._unsent_size or not outbox.size or self.stage is not _OPEN:
                    break

    # Receiving

    def _read(self) -> None:
        """Receive once. Raises BlockingIOError, OSError, and ProtocolError."""
        tls, sock, protocol = self._tls, self._sock, self._protocol
        if tls is not None and self.stage is Stage.NEW:
            tls.shake_hands()
            if tls.is_open:
                if tls.protocol != HTTP2:
                    raise ConnectionAbortedError("the client did not choose h2 by ALPN")
                self.stage = Stage.APPLICATION
                self._flush_soon()
            elif tls.wants_to_write:
                self._watch_writable()
        while self.stage is _OPEN:
            room = protocol.room()
            if room is not None:
                size = self._fill(room)
            else:
                content = sock.recv(_RECEIVE_SIZE)
                size = len(content)
                if size:
                    protocol.receive(content)
            if not size:
                raise ConnectionResetError("the client has closed it")
            if tls is None or not tls.pending():
                break
        if self._unsent_size:
            self._stop_questions()

    def _fill(self, room: memoryview) -> int:
        """Receive the rest of a large frame into the memory of its call, and what follows it, in one system call.

        Returns the number of bytes. Raises as `_read`.
        """
        sock, protocol = self._sock, self._protocol
        if isinstance(sock, TlsSocket):
            size = sock.recv_into(room)
            if size:
                protocol.filled(size)
            return size
        behind = self._service.behind
        size = sock.recvmsg_into((room, behind))[0]
        own = min(size, len(room))
        if own:
            protocol.filled(own)
        if size > own:
            protocol.receive(bytes(behind[: size - own]))
        return size

    def _stop_questions(self) -> None:
        """Receive no more from a client whose socket is full of answers: more of them would only pile up."""
        outbox = self._protocol.outbox
        waiting = self._unsent_size + outbox.size + outbox.unsent
        if self._reads and waiting > self._service.port.limits.high_water:
            self._reads = False
            self._readable.stop()

    # Sending

    def _flush_soon(self) -> None:
        self._service.flush_soon(self)

    def _send_small(self, outbox: Outbox) -> None:
        """Send answers of the ordinary size, which the socket takes at once, on the shortest way."""
        parts, size = outbox.take()
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            sent = self._sock.send(whole)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        if sent != size:
            self._unsent, self._unsent_size = [memoryview(whole)[sent:]], size - sent
            self._since = self._service.clock.now
            self._watch_writable()

    def _push(self) -> None:
        """Send until the socket has no more room."""
        try:
            self._send()
        except OSError as error:
            self._lost(error)
            return
        if self._unsent_size:
            self._watch_writable()
            self._stop_questions()
            return
        try:
            self._sent_all()
        except OSError as error:
            self._lost(error)
        except Exception:  # the request boundary, as in `_on_readable`
            self._fail()

    def _send(self) -> None:
        """Raises OSError at the end of the connection."""
        parts, left, sock = self._unsent, self._unsent_size, self._sock
        try:
            while left:
                if left <= _MAX_JOINED:
                    if len(parts) > 1:
                        parts = self._unsent = [b"".join(parts)]
                    sent = sock.send(parts[0])
                else:
                    sent = sock.sendmsg(parts[:_IOV_MAX])
                left -= sent
                self._since = self._service.clock.now
                if left:
                    drop_sent(parts, sent)
        except BlockingIOError:
            pass
        self._unsent_size = left
        if not left:
            self._unsent = []

    def _sent_all(self) -> None:
        """Continue after the socket has taken everything, or end the connection."""
        if self.stage is Stage.SEND:
            # Wait until the client has read everything: to close a socket with unread bytes would reset the connection,
            # and what is on its way to the client would be lost.
            self.stage = Stage.LINGER
            self._since = self._service.clock.now
            self._sock.shutdown(socket.SHUT_WR)
            self._readable.start(self._service.connections.order.add, self._on_readable)
            return
        protocol = self._protocol
        protocol.outbox.pump()
        if not self._reads:
            self._reads = True
            self._readable.start(self._service.connections.order.add, self._on_readable)
        if protocol.outbox.size:
            self._flush_soon()  # also for what came while the socket was full, of which the protocol has told already
        elif protocol.is_finished:
            self._finish()

    def _watch_writable(self) -> None:
        if self._writable is None:
            self._writable = gevent.get_hub().loop.io(self._sock.fileno(), _WRITE)
        self._writable.start(self._on_writable)

    # Time and end

    def tick(self) -> None:
        now = self._service.clock.now
        if self.stage is Stage.APPLICATION:
            try:
                self._tick(now)
            except Exception:  # the request boundary, as in `_on_readable`
                self._fail()
        elif now - self._since > (_LINGER_S if self.stage is Stage.LINGER else self._service.port.limits.handshake_s):
            self.close()

    def _tick(self, now: float) -> None:
        protocol = self._protocol
        if protocol.streams:
            self.idle_since = now
        if not protocol.tick(now):
            self._finish()
        elif self._unsent_size and now - self._since > self._service.port.limits.stall_s:
            self._lost(TimeoutError("the client did not take its answers"))
        elif self._service.port.shares_memory and now - self._left_shared > _SHARED_S:
            self._left_shared = now
            try:
                protocol.leave_shared()
                if self._unsent_size:
                    self._unsent = [copy_of(memoryview(part)) for part in self._unsent]
            except MemoryError:
                log.warning("out of memory: %s reads or sends slowly and keeps its shared memory", protocol.table.peer)
        elif now > self._ages_at:
            self._ages_at = NEVER
            self._dies_at = now + self._service.port.age_grace_s
            self.drain()
        elif now > self._dies_at:
            self._cancel_all(Http2Code.NO_ERROR, "max_age")
            self._finish()

    def has_streams(self) -> bool:
        return self.stage is Stage.APPLICATION and bool(self._protocol.streams)

    def is_held_up(self) -> bool:
        """True while nothing is received because the client does not take the answers."""
        return not self._reads

    def is_idle(self) -> bool:
        """True if it may end without the loss of a call."""
        return self.stage is Stage.NEW or (self.stage is Stage.APPLICATION and not self._protocol.streams)

    def make_room(self) -> None:
        """End an idle connection, so that its place is free."""
        if self.stage is Stage.NEW:
            self.close()
        else:
            self.drain()

    def drain(self) -> None:
        """Take no more streams after a round trip, and end when the last has ended."""
        if self.stage in (Stage.NEW, Stage.APPLICATION):
            self._is_draining = True
            self._protocol.drain()

    def _finish(self) -> None:
        """Send the protocol's remaining output with the GOAWAY, and let the client read it."""
        if self.stage is Stage.APPLICATION:
            if not self._protocol.is_finished:
                self._cancel_all()
            self.stage = Stage.SEND
            self._since = self._service.clock.now
            self._readable.stop()
            self._flush_soon()

    def _cancel_all(self, code: Http2Code = Http2Code.NO_ERROR, text: str = "") -> None:
        """Cancel the calls of the streams that are left, with a GOAWAY unless one has said why."""
        try:
            self._protocol.close(code, text)
        except Exception:  # the request boundary, as in `_on_readable`
            log.exception("a call of %s could not be cancelled", self._protocol.table.peer)

    def _fail(self) -> None:
        log.exception("the connection of %s failed", self._protocol.table.peer)
        self._cancel_all(Http2Code.INTERNAL_ERROR, "internal error")
        self._finish()

    def _lost(self, error: OSError) -> None:
        log.debug("the connection of %s has ended: %s", self._protocol.table.peer, error)
        self.close()

    def close(self) -> None:
        """End it at once, and cancel the calls of its streams."""
        if self.stage is Stage.ENDED:
            return
        self.stage = Stage.ENDED
        self._readable.stop()
        self._readable.close()
        if self._writable is not None:
            self._writable.stop()
            self._writable.close()
        self._unsent = []
        self._unsent_size = 0
        self._service.connections.open.discard(self)
        self._service.connections.last_end = self._service.clock.now
        self._sock.close()
        self._cancel_all()
        # Reference counting frees the memory: a connection is too old for frequent collections.
        self._protocol.outbox.detach()


# Room to receive more behind the rest of a large frame: the head of the next one above all.
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

    def flush_soon(self, connection: Http2Connection) -> None:
        """Have `connection` send its output after all other ready work."""
        if not self._due:
            self._loop.run_callback(self._flush)
        self._due[connection] = None

    def _flush(self) -> None:
        due, self._due = self._due, {}
        for connection in due:
            guarded(connection.flush, "sending the answers of an HTTP/2 connection")


# --- the connections of the worker: their clocks, and their end


class Http2Connections:
    """The connections through the worker's HTTP/2 listeners; `open` holds them. `applications` serve their streams.
    `last_end` is when one ended last, in seconds of the coarse clock. Hub thread only.

    There is no timer per connection or stream: `sweep()` visits every connection once per tick.
    """

    def __init__(self, clock: CoarseClock, room: int) -> None:
        """`room`: while the worker has more connections than this, idle ones make room for new ones."""
        self.clock = clock
        self.order = ReadOrder()
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
