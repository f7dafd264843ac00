"""One client connection: requests in, responses out, one greenlet.

Source: docs/architecture.md section 3 (fair waiting, one buffer per body, one `sendmsg` per response).
"""

from __future__ import annotations

import logging
import math
import socket
from enum import Enum
from io import BytesIO
from typing import TYPE_CHECKING, Any

import gevent
import gunicorn_h1c

from app.worker.http1.read_watch import ReadWatch
from app.worker.http1.refusal import NO_MEMORY, ClientGone, Refusal, check_length
from app.worker.http1.request_body import BodyInput, IncomingBody, drop_sent
from app.worker.http1.request_head import HEAD_END, RequestHead
from app.worker.http1.response import Response
from app.worker.http1.strict_request import StrictRequest
from core.http.reply import BODY_KEY, CLIENT_GONE_KEY
from core.inference.tensors import Buffer

if TYPE_CHECKING:
    from app.worker.http1.service import Service

log = logging.getLogger("trident.http")
access_log = logging.getLogger("trident.access")

_WRITE = 2
_RECEIVE_SIZE = 16384
_MAX_HEAD_SIZE = 65536
_MAX_DISCARDED = 64 << 20
# Up to here copying the parts together is cheaper than an iovec for them (measured: 0.4 microseconds less at 100 bytes,
# equal at 16 KiB, 1.7 more at 64 KiB).
_JOINED_SIZE = 16384
_IOV_MAX = 1024


_NEVER = math.inf


class Phase(Enum):
    """What a connection waits for; every phase but APPLICATION has its timeout."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    APPLICATION = "the application"
    SEND = "the client to take its response"
    LINGER = "the client to read a refusal"
    ENDED = "nothing"


class Connection:
    """Serves one socket until its end. Hub thread only; `client_gone` from the greenlet that serves the request.

    `phase` and `since` (seconds of the coarse clock) are for the sweep, and `moves_since`: when the body that is being
    received, or the response that is being sent, began to move.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_hub",
        "_loop",
        "_peer",
        "_readable",
        "_service",
        "_sock",
        "_unsent",
        "_writable",
        "moves_since",
        "phase",
        "since",
    )

    def __init__(self, sock: socket.socket, peer: Any, service: Service) -> None:
        """`sock` is connected and does not block."""
        self._sock = sock
        self._peer: tuple[str, str] = (peer[0], str(peer[1])) if isinstance(peer, tuple) else ("", "")
        self._service = service
        self._hub = gevent.get_hub()
        self._loop = self._hub.loop
        self._readable = ReadWatch(self._hub, sock.fileno())
        self._writable: Any = None
        self._buffer = b""
        self._body: IncomingBody | None = None
        self._unsent: list[Buffer] | None = None
        self.phase = Phase.IDLE
        self.since = service.clock.now
        self.moves_since = _NEVER

    def serve(self) -> None:
        """Answer request after request. Returns when the connection is closed."""
        connections = self._service.connections
        connections.add(self)
        try:
            while self._serve_one():
                self.phase = Phase.IDLE
                self.since = self._service.clock.now
        except Refusal as refusal:
            self._refuse(refusal)
        except (ClientGone, OSError) as ending:
            log.debug("connection of %s ended: %s", self._peer, ending)
        finally:
            connections.discard(self)
            self._close()

    def _serve_one(self) -> bool:
        service = self._service
        buffer = self._buffer
        if buffer:
            self._take_turn()  # a pipelined request
        else:
            # Through the hub even if the request is there already: a busy client must not starve the others.
            self._readable.wait()
            try:
                buffer = self._sock.recv(_RECEIVE_SIZE)
            except BlockingIOError:
                return True
            if not buffer:
                return False
        end = buffer.find(HEAD_END) + 4
        head = service.heads.known.get(buffer[:end])
        if head is None:
            self._buffer = buffer
            head = self._read_head()
            if head is None:
                return self._serve_strictly()
            buffer = self._buffer
            end = buffer.find(HEAD_END) + 4
        environ = head.environ.copy()
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = self._peer
        length = head.length
        if not length:
            environ[BODY_KEY] = b""
            self._buffer = buffer[end:]
        elif len(buffer) - end >= length:
            environ[BODY_KEY] = buffer[end : end + length]
            self._buffer = buffer[end + length :]
        else:
            self._buffer = b""
            environ[BODY_KEY] = self._receive_body(length, buffer[end:], service.binary_offset(environ))
        return self._answer(head, environ)

    def _read_head(self) -> RequestHead | None:
        """The plain head at the start of the buffer, completed from the socket; None if gunicorn must judge it."""
        heads = self._service.heads
        self._begin(Phase.HEAD)
        checked = 0
        while True:
            end = self._buffer.find(HEAD_END) + 4
            if end > 3:
                return heads.parse(self._buffer[:end])
            size = len(self._buffer)
            if size > _MAX_HEAD_SIZE:
                raise Refusal(431, f"request head exceeds the maximum of {_MAX_HEAD_SIZE} bytes")
            if size >= 2 * checked:  # not at every byte of a client that sends single bytes
                checked = size
                try:
                    if not heads.is_incomplete(self._buffer):
                        return None
                except gunicorn_h1c.ParseError as error:
                    raise Refusal.of(error) from error
            part = self._receive(_RECEIVE_SIZE)
            if not part:
                raise ClientGone("the head is not whole")
            self._buffer += part

    def _serve_strictly(self) -> bool:
        """Serve the request at the start of the buffer by gunicorn's parser; the next one may be a plain one again."""
        service, peer = self._service, self._peer
        request = StrictRequest(self, service.cfg, peer)
        head = request.head(self._sock, peer, service.address)
        check_length(head.length, service.limits.max_body_size)
        if request.expects_continue:
            self.send([b"HTTP/1.1 100 Continue\r\n\r\n"], 25)
        environ = head.environ
        self._begin(Phase.BODY)
        if request.is_chunked:
            environ[BODY_KEY] = whole = request.chunked_body(service.limits.max_body_size)
            environ["CONTENT_LENGTH"] = str(len(whole))
            self._buffer = request.rest() + self._buffer
        else:
            rest = request.rest() + self._buffer
            self._buffer = rest[head.length :]
            environ[BODY_KEY] = first = rest[: head.length]
            if len(first) < head.length:
                environ[BODY_KEY] = self._receive_body(head.length, first, service.binary_offset(environ))
        return self._answer(head, environ)

    def _receive_body(self, length: int, first: bytes, offset: int) -> memoryview:
        """A body of `length` bytes that begins with `first`, aligned at `offset`, straight from the socket."""
        self._begin(Phase.BODY)
        self.moves_since = self.since
        try:
            body = self._body = IncomingBody(length, first, offset, self._service.allocate)
            while body.got < length:
                self._readable.wait()
                try:
                    received = self._sock.recv_into(body.room())
                except BlockingIOError:
                    continue
                if not received:
                    raise ClientGone(f"{body.got} of {length} bytes of the body came")
                body.got += received
                self.since = self._service.clock.now
        except MemoryError:
            raise Refusal(503, NO_MEMORY.format(length)) from None
        finally:
            self._body = None
            self.moves_since = _NEVER
        return body.memory

    def _answer(self, head: RequestHead, environ: dict[str, Any]) -> bool:
        """Have the application answer. Returns whether the connection goes on."""
        service = self._service
        body = environ[BODY_KEY]
        environ[CLIENT_GONE_KEY] = self.client_gone
        environ["wsgi.input"] = BytesIO(body) if type(body) is bytes else BodyInput(memoryview(body))
        del body  # see Response.run
        response = Response(self, head, service.response_heads, service.clock)
        self.phase = Phase.APPLICATION
        try:
            response.run(service.application, environ)
        except ClientGone:
            raise
        except Exception:  # the request boundary: whatever an application raises is answered and logged here, once
            log.exception("%s %s failed", environ["REQUEST_METHOD"], environ["RAW_URI"])
            if response.started:
                raise ClientGone("the response broke off") from None
            raise Refusal(500, "internal server error") from None
        if service.logs_access:
            access_log.info(
                '%s "%s %s" %s', self._peer[0], environ["REQUEST_METHOD"], environ["RAW_URI"], response.status
            )
        return response.keep_alive and not service.connections.closing

    def is_closing(self) -> bool:
        """Whether the request being answered is the last one of this connection, as the server stops."""
        return self._service.connections.closing

    # --- the socket

    def recv(self, size: int) -> bytes:
        """At least one byte and at most `size`, or none at the end: the source of a strict request.

        Bytes that are here already come in pieces too: gunicorn's parser copies what it holds at each step.
        """
        if not self._buffer:
            return self._receive(size)
        self._take_turn()
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        return part

    def _take_turn(self) -> None:
        """Let all others who are ready go first, although this connection has what it needs."""
        with self._loop.timer(0) as turn:
            self._hub.wait(turn)

    def _receive(self, size: int) -> bytes:
        """At least one byte and at most `size` from the socket, or none at its end. Waits on the hub."""
        while True:
            self._readable.wait()
            try:
                part = self._sock.recv(size)
            except BlockingIOError:
                continue
            if self.phase is Phase.BODY:
                self.since = self._service.clock.now
            return part

    def send(self, parts: list[Buffer], size: int) -> None:
        """Send all parts, `size` bytes together. Raises ClientGone."""
        try:
            try:
                if size <= _JOINED_SIZE:
                    whole = b"".join(parts)
                    parts = [whole]
                    if len(self._service.connections) > 1:
                        self._service.send_turns.wait()
                    sent = self._sock.send(whole)
                else:
                    sent = self._sock.sendmsg(parts[:_IOV_MAX])
            except BlockingIOError:
                sent = 0
            if sent != size:
                self._send_rest(parts, sent, size)
        except OSError as error:
            raise ClientGone("it did not take the response") from error

    def _send_rest(self, parts: list[Buffer], sent: int, size: int) -> None:
        """Send what comes after the first `sent` bytes, and leave nothing in `parts` that was sent."""
        before, self.phase = self.phase, Phase.SEND
        if self._writable is None:
            self._writable = self._loop.io(self._sock.fileno(), _WRITE)
        self._unsent = parts
        self.moves_since = self._service.clock.now
        try:
            done = sent
            while done < size:
                self.since = self._service.clock.now
                drop_sent(parts, sent)
                self._hub.wait(self._writable)
                try:
                    sent = self._sock.sendmsg(parts[:_IOV_MAX])
                except BlockingIOError:
                    sent = 0
                done += sent
        finally:
            self._unsent = None
            self.moves_since = _NEVER
        self.phase = before

    def leave_shared(self) -> None:
        """Move what a slow client still has to send, or to take, out of the memory that the engine shares.

        The greenlet that serves waits on the hub meanwhile, and goes on with what it finds.
        """
        self.moves_since = _NEVER
        if self._service.allocate is None:
            return
        try:
            if self._body is not None:
                self._body.leave_shared()
            if self._unsent is not None:
                self._unsent[:] = [memoryview(bytes(part)) for part in self._unsent]
        except MemoryError:
            log.warning("no memory to take what %s is slow with out of the engine's", self._peer)

    def client_gone(self) -> bool:
        """Whether the client has closed its side. Does not wait and takes nothing from the socket."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def has_input(self) -> bool:
        """Whether bytes of a request wait in the socket."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    # --- its end

    def time_out(self) -> None:
        """End the connection because it waited too long. Its greenlet wakes up and finds it closed."""
        if self.phase in (Phase.HEAD, Phase.BODY):
            try:
                self._sock.send(Refusal(408, "the request was not received in time").response())
            except OSError as error:
                log.debug("408 to %s not sent: %s", self._peer, error)
        self.hang_up()

    def hang_up(self) -> None:
        """Shut the socket down; the greenlet that serves it closes it."""
        self.phase = Phase.ENDED
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("connection of %s was down already: %s", self._peer, error)

    def _begin(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self._service.clock.now

    def _refuse(self, refusal: Refusal) -> None:
        """Send the refusal and take what the client still sends, so that no reset overtakes the answer."""
        log.info("%d to %s: %s", refusal.status, self._peer[0], refusal.message)
        try:
            answer = refusal.response()
            self.send([answer], len(answer))
            self._begin(Phase.LINGER)
            self._sock.shutdown(socket.SHUT_WR)
            discarded = 0
            while discarded < _MAX_DISCARDED and (part := self._receive(_RECEIVE_SIZE)):
                discarded += len(part)
        except (ClientGone, OSError) as error:
            log.debug("refusal to %s not taken: %s", self._peer, error)

    def _close(self) -> None:
        self.phase = Phase.ENDED
        self._readable.close()
        if self._writable is not None:
            self._writable.stop()
            self._writable.close()
        self._sock.close()
