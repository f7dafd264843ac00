"""One HTTP/1 connection: requests in, responses out, one greenlet.

The connection comes first, then what connections share, the access log, and the response that sends what a WSGI
application returns.
Source: docs/architecture.md section 3 (fair waiting, one buffer per body, one `sendmsg` per response); PEP 3333;
RFC 9110 sections 6.4 and 8.6; RFC 9112 sections 6 and 7.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from io import BytesIO
from time import monotonic_ns, perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol
from wsgiref.types import WSGIApplication

from gunicorn.http.wsgi import base_environ

from trident.app.worker.connection import (
    APPLICATION,
    IDLE,
    LONGEST_LINGER_S,
    NEVER,
    ClientGone,
    CoarseClock,
    Connection,
    Connections,
    Stage,
)
from trident.app.worker.http1.request import (
    CROWDED_OUT,
    HEAD_END,
    MAX_HEAD_SIZE,
    NO_MEMORY,
    PLAIN_TEXT,
    BadHttp,
    ChunkedBody,
    HttpHead,
    RequestHeadParser,
)
from trident.app.worker.tls import ServerTls, TlsSocket, is_plain_http
from trident.core.buffers import Allocate, RequestBody
from trident.core.frontend.request import NOT_NOTED, Span
from trident.core.http.application import log_request
from trident.core.http.body import MAX_LENGTH, BodyInput
from trident.core.http.errors import INFERENCE_KEY, REQUEST_ID_KEY
from trident.core.http.front_end import PROBE_KEY, RECEIVED_KEY, TRACES_KEY, InferenceNote
from trident.core.http.reply import ARRIVED_KEY, BODY_KEY, CLIENT_GONE_KEY, Reply, send
from trident.core.http.stream import UPGRADE_KEY, ModelStream
from trident.core.inference.tensors import Buffer, size_of
from trident.core.memo import Memo
from trident.core.observability.access_log import LONGEST_LOGGED, log_access
from trident.core.observability.refusals import note_refusal
from trident.core.observability.switches import SWITCHES, TraceGate

if TYPE_CHECKING:
    from trident.app.worker.web_socket import WebSocket

log = logging.getLogger("trident.http")

_RECEIVE_SIZE: Final = 16384
# The application is asked before a longer body is received, and it counts among the unfinished ones.
_SMALL_BODY: Final = 16384
# Of a chunk, in one step.
_RECEIVE_MOST: Final = 1 << 20
_MAX_DISCARDED: Final = 1 << 30
_DISCARD_SIZE: Final = 1 << 18
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# A client that has ended its sending side may have gone or may wait for its answer; it is first probed after this time.
_HALF_CLOSED_S: Final = 0.5
# Enough of a request for its line in the access log.
_SHOWN: Final = 2048
_SERVER_ERROR: Final = 500


class Http1Connection(Connection):
    """Serves one socket until its end. Hub thread only; `client_gone` from the greenlet that serves the request.

    `received` is how many bytes of an unfinished body have arrived.
    """

    def __init__(self, sock: socket.socket | TlsSocket, peer: Any, service: Http1Service) -> None:
        super().__init__(
            sock,
            peer,
            service.clock,
            service.connections.order,
            shares_memory=service.allocate is not None,
        )
        self._service = service
        self._buffer = b""
        self._body: RequestBody | None = None
        # For the access log only: the start of the current request and its time, 0 before its first byte.
        self._received = b""
        self._began_ns = 0
        # The first byte of the current request, in nanoseconds of the monotonic clock; 0 unless it may be traced.
        self._received_ns = 0
        self._web_socket: WebSocket | None = None
        self.received = 0
        # The refusal of the body that is being received, because others need its memory.
        self._refusal: BadHttp | None = None
        # The response to the request that the application is answering; when the client was seen to have ended its
        # sending side, in seconds of the coarse clock; and True if it has been probed since then.
        self._response: Response | None = None
        self._half_closed_since = NEVER
        self._is_asked = False

    def serve(self) -> None:
        """Answer request after request. Returns when the connection is closed."""
        connections = self._service.connections
        connections.open.add(self)
        try:
            if isinstance(self._sock, TlsSocket):
                try:
                    self.shake_hands(self._sock)
                except OSError as error:
                    if is_plain_http(error):
                        self._sock = self._sock.plain()
                        raise BadHttp(400, PLAIN_TEXT) from error
                    raise
            while self._serve_one():
                self.stage = IDLE
                self.since = self._clock.now
        except BadHttp as refusal:
            refusal.__traceback__ = None  # its frames refer to the body
            self._refuse(refusal)
        except (ClientGone, OSError) as ending:
            log.debug("connection of %s ended: %s", self._peer, ending)
        except Exception:  # of what the application does outside of an answer
            log.exception("the connection of %s failed", self._peer)
            self._refuse(BadHttp(500, "internal server error"))
        finally:
            connections.open.discard(self)
            connections.last_end = self._clock.now
            self.close()

    def _serve_one(self) -> bool:
        """Receive one request and answer it. Returns whether the connection continues."""
        buffer = self._buffer
        if buffer:
            self.let_others_run()  # a pipelined request
        else:
            buffer = self.receive(_RECEIVE_SIZE)
            if not buffer:
                return False
        if SWITCHES.access:
            self._began_ns = perf_counter_ns()
            self._received = buffer[:_SHOWN]
        else:
            self._began_ns = 0
        self._received_ns = monotonic_ns() if self._service.trace_gate.is_open else 0
        end = buffer.find(HEAD_END) + 4
        head = self._service.heads.known.get(buffer[:end])
        if head is None:
            self._buffer = buffer
            head = self._read_head()
            buffer = self._buffer
            end = buffer.find(HEAD_END) + 4
        environ = head.environ.copy()
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = self._peer
        body_end = end + head.length
        if head.is_plain and len(buffer) >= body_end:
            self._buffer = buffer[body_end:]
            environ[BODY_KEY] = buffer[end:body_end]
            return self._answer(head, environ)
        if head.upgrades:
            return self._upgrade(head, environ, buffer[end:])
        self._buffer = b""
        if not head.is_plain or head.length > _SMALL_BODY:
            self.stage = APPLICATION
            most = self._service.admit(environ)
            if isinstance(most, Reply):
                environ["CONTENT_LENGTH"] = "0"
                environ[BODY_KEY] = b""
                response = Response(self, head, self._service.response_heads, self._clock)
                response.keep_alive = False
                if SWITCHES.requests:
                    log_request(environ)
                application: Any = partial(send, most)
                response.run(application, environ)
                self._log_access(environ, response)
                self._linger()
                return False
            if head.expects_continue:
                self.send([_CONTINUE], len(_CONTINUE))
            if head.is_chunked:
                environ[BODY_KEY] = self._receive_chunks(buffer[end:], most)
                environ["CONTENT_LENGTH"] = str(len(environ[BODY_KEY]))
                return self._answer(head, environ)
        if len(buffer) >= body_end:
            self._buffer = buffer[body_end:]
            environ[BODY_KEY] = buffer[end:body_end]
        else:
            environ[BODY_KEY] = self._receive_body(head.length, buffer[end:], self._service.binary_offset(environ))
        return self._answer(head, environ)

    def _read_head(self) -> HttpHead:
        heads = self._service.heads
        self.begin(Stage.HEAD)
        checked = 0
        while True:
            end = self._buffer.find(HEAD_END) + 4
            if end > 3:
                return heads.parse(self._buffer[:end])
            size = len(self._buffer)
            # A client may send single bytes: do not check after each of them.
            if size >= 2 * checked or size > MAX_HEAD_SIZE:
                checked = size
                heads.check_part(self._buffer)
            part = self.receive(_RECEIVE_SIZE)
            if not part:
                raise ClientGone("the request head is incomplete")
            self._buffer += part
            if self._began_ns:
                self._received = self._buffer[:_SHOWN]

    def _receive_chunks(self, part: bytes, most: int) -> Buffer:
        """A chunked body of at most `most` bytes that begins with `part`. What follows it stays in the buffer."""
        self.begin(Stage.BODY)
        body = ChunkedBody(most)
        try:
            while not body.feed(part):
                self._grew(len(body.content))
                part = self.receive(min(max(body.missing, _RECEIVE_SIZE), _RECEIVE_MOST))
                if not part:
                    raise ClientGone(f"{len(body.content)} bytes of the body and not its end were received")
                self.since = self._clock.now
        finally:
            self._end_unfinished()
        self._buffer = body.rest
        return bytes(body.content) if len(body.content) <= _SMALL_BODY else memoryview(body.content)

    def _receive_body(self, length: int, first: bytes, offset: int) -> memoryview:
        """A body of `length` bytes that begins with `first`, aligned at `offset`, straight from the socket."""
        self.begin(Stage.BODY)
        self.moves_since = self.since
        try:
            body = self._body = RequestBody(length, first, offset, self._service.allocate)
            while body.got < length:
                if length > _SMALL_BODY:
                    self._grew(body.got)
                received = self.receive_body(body)
                if not received:
                    raise ClientGone(f"{body.got} of {length} bytes of the body were received")
                body.got += received
                self.since = self._clock.now
        except MemoryError:
            raise BadHttp(503, NO_MEMORY.format(length)) from None
        finally:
            self._body = None
            self.moves_since = NEVER
            if length > _SMALL_BODY:
                self._end_unfinished()
        return body.memory

    def _grew(self, received: int) -> None:
        """Note that `received` bytes of the body have arrived. Raises BadHttp if their memory is needed for others."""
        self.received = received
        self._service.connections.unfinished.grew(self)
        if self._refusal is not None:
            raise self._refusal

    def _end_unfinished(self) -> None:
        self._service.connections.unfinished.remove(self)
        self._refusal = None

    @property
    def is_held_up(self) -> bool:
        """False: the server never pauses a client that is sending a body."""
        return False

    def crowd_out(self) -> None:
        """Refuse the body that is being received: others need its memory."""
        self._refusal = BadHttp(503, CROWDED_OUT.format(self._service.limits.max_unfinished_size))
        self._readable.interrupt(self._refusal)

    def _upgrade(self, head: HttpHead, environ: dict[str, Any], rest: bytes) -> bool:
        """Let the application open a WebSocket and serve that to its end, or answer otherwise; `rest` follows the head.
        Returns whether the connection continues."""
        self._buffer = rest
        environ[BODY_KEY] = b""
        environ[UPGRADE_KEY] = partial(self._accept, environ)
        keep_alive = self._answer(head, environ)
        web_socket = self._web_socket
        if web_socket is None:
            return keep_alive
        if self._service.connections.closing:
            web_socket.leave()
        self._buffer = b""
        web_socket.serve(rest)
        return False

    def _accept(self, environ: dict[str, Any], stream: ModelStream) -> list[tuple[str, str]]:
        """The headers that accept a handshake for `stream`. Raises InvalidRequest."""
        # Imported for servers with streams only, and not on the hub: that takes a tenth of a second.
        module = self._hub.threadpool.apply(import_module, ("trident.app.worker.web_socket",))
        web_socket: WebSocket = module.WebSocket(self, stream, self._clock, self._service.limits.keepalive_s)
        headers: list[tuple[str, str]] = web_socket.accept(environ)
        self._web_socket = web_socket
        return headers

    def _answer(self, head: HttpHead, environ: dict[str, Any]) -> bool:
        """Let the application answer. Returns whether the connection continues."""
        service = self._service
        body = environ[BODY_KEY]
        environ[CLIENT_GONE_KEY] = self.client_gone
        environ[ARRIVED_KEY] = monotonic_ns()
        environ["wsgi.input"] = BytesIO(body) if type(body) is bytes else BodyInput(memoryview(body))
        del body  # see Response.run
        response = self._response = Response(self, head, service.response_heads, self._clock)
        self.stage = APPLICATION
        if self._received_ns:
            environ[RECEIVED_KEY] = (self._received_ns, environ[ARRIVED_KEY])
        if SWITCHES.requests:
            log_request(environ)
        try:
            response.run(service.application, environ)
        except ClientGone:
            self._log_access(environ, response, aborted=True)
            self._end_traces(environ, NOT_NOTED)
            raise
        except Exception:  # the request boundary: every exception of an application is answered and logged here, once
            log.exception("%s %s failed", environ["REQUEST_METHOD"], environ["RAW_URI"])
            if response.started:
                self._log_access(environ, response, aborted=True)
                raise ClientGone("the response was interrupted") from None
            raise BadHttp(500, "internal server error") from None
        finally:
            self._response = None
        if self._began_ns:
            self._log_access(environ, response)
        if response.began_ns:
            self._end_traces(environ, (response.began_ns, monotonic_ns()))
        return response.keep_alive and not service.connections.closing

    def client_gone(self) -> bool:
        """True if the client reads no more. One that has only ended its sending side, as HTTP/1.1 allows, still reads.

        The socket shows the difference only after something was sent. So after a while `100 Continue` is sent, which
        clients skip: one that has gone resets the connection.
        """
        sock, response = self._sock, self._response
        if isinstance(sock, TlsSocket) or response is None or response.is_http_1_0:
            return super().client_gone()
        try:
            if sock.recv(1, socket.MSG_PEEK):
                return False
            now = self._clock.now
            if self._half_closed_since == NEVER:
                self._half_closed_since = now
            elif self._is_asked or response.started:
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self.hang_up()
                    return True
            elif now - self._half_closed_since >= _HALF_CLOSED_S:
                self._is_asked = True
                sock.send(_CONTINUE)
        except BlockingIOError:
            return False
        except OSError:
            self.hang_up()
            return True
        return self.stage is Stage.ENDED

    def _end_traces(self, environ: dict[str, Any], sent: Span) -> None:
        if TRACES_KEY in environ:
            self._service.end_traces(environ, sent)

    def _log_access(self, environ: dict[str, Any], response: Response, *, aborted: bool = False) -> None:
        """Log an answered request. `aborted`: the client left before it had the whole response."""
        if not self._began_ns or not response.status or (PROBE_KEY in environ and not SWITCHES.probes):
            return
        length = environ.get("CONTENT_LENGTH") or ""
        received = int(length) if length.isdecimal() else 0
        sizes: dict[str, object] = {"received_bytes": received, "sent_bytes": response.size}
        if aborted:
            sizes["aborted"] = True
        note: InferenceNote | None = environ.get(INFERENCE_KEY)
        log_access(
            self._peer[0],
            environ["REQUEST_METHOD"],
            environ["RAW_URI"],
            int(response.status[:3]),
            self._began_ns,
            sizes,
            request_id=environ.get(REQUEST_ID_KEY) or "",
            model=note.model if note is not None else "",
            version=note.version if note is not None else 0,
            times=note.times if note is not None else None,
        )

    def _log_refusal(self, refusal: BadHttp, size: int) -> None:
        if self._began_ns:
            method, path = _named(self._received)
            log_access(self._peer[0], method, path, refusal.status, self._began_ns, {"sent_bytes": size})

    def is_closing(self) -> bool:
        """True if the server stops, so that the current request is the last one of this connection."""
        return self._service.connections.ending

    def _copy_shared(self) -> None:
        if self._body is not None:
            self._body.leave_shared()
        super()._copy_shared()

    def leave(self) -> None:
        if self._web_socket is not None:
            self._web_socket.leave()

    def time_out(self) -> None:
        """End a connection whose stage took too long, with 408 if a request was being received; or check that the
        client of a WebSocket is still there."""
        if self.stage is Stage.STREAM and self._web_socket is not None:
            self._web_socket.look()
            return
        if self.stage in (Stage.HEAD, Stage.BODY):
            refusal = BadHttp(408, "the request was not received in time")
            answer = refusal.response()
            self._log_refusal(refusal, len(answer))
            try:
                self._sock.send(answer)
            except OSError as error:
                log.debug("408 to %s was not sent: %s", self._peer, error)
        self.hang_up()

    def _refuse(self, refusal: BadHttp) -> None:
        log.info("%d to %s: %s", refusal.status, self._peer[0], refusal.message)
        if refusal.status < _SERVER_ERROR:
            method, path = _named(self._received)
            note_refusal(f"{method} {path.partition('?')[0]}", "", refusal.status, refusal.message)
        answer = refusal.response()
        self._log_refusal(refusal, len(answer))
        try:
            self.send([answer], len(answer))
            self._linger()
        except (ClientGone, OSError) as error:
            log.debug("refusal to %s was not received: %s", self._peer, error)

    def _linger(self) -> None:
        """Discard further input for a while, so that no reset overtakes the answer."""
        self._buffer = b""
        self.begin(Stage.LINGER)
        self.end_sending()
        until = self.since + LONGEST_LINGER_S
        discarded = 0
        while discarded < _MAX_DISCARDED and self.since < until and (part := self.receive(_DISCARD_SIZE)):
            discarded += len(part)
            self.since = self._clock.now


_SHUT = TraceGate()
# Every request sets these. The template already has them, so that a copy of it does not grow.
_REQUEST_KEYS: dict[str, Any] = dict.fromkeys(
    ("REMOTE_ADDR", "REMOTE_PORT", "wsgi.input", BODY_KEY, CLIENT_GONE_KEY, ARRIVED_KEY)
)


class Http1Service:
    """One application on one listening address. Hub thread only.

    `admit(environ)`, asked before a long body is received, is the most bytes that it may have, or the reply to a
    request that is refused by its head. `binary_offset(environ)` is the application's estimate, before the body is
    received, of the offset in bytes at which the tensors begin in it; 0 if unknown. The body is received so that they
    lie at a multiple of 64.
    While `trace_gate` is open, the times at which requests arrive are noted in their environ; `end_traces(environ,
    sent)` is called when the response to one that was traced has left.
    """

    def __init__(
        self,
        application: WSGIApplication,
        address: Any,
        cfg: Any,
        connections: Connections,
        allocate: Allocate | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`allocate` allocates large bodies in memory that is shared with the engine; None without such memory.
        `tls`: None for plain text."""
        self.application = application
        self.connections = connections
        self.tls = tls
        self.clock = connections.clock
        self.limits = connections.limits
        self.allocate = allocate
        self.admit: Callable[[dict[str, Any]], int | Reply] = getattr(application, "admit", lambda environ: MAX_LENGTH)
        self.binary_offset: Callable[[dict[str, Any]], int] = getattr(application, "binary_offset", lambda environ: 0)
        self.trace_gate: TraceGate = getattr(application, "trace_gate", _SHUT)
        self.end_traces: Callable[[dict[str, Any], Span], None] = getattr(
            application, "end_traces", lambda environ, sent: None
        )
        self.response_heads: ResponseHeads = Memo(512)
        name, port = address[:2] if isinstance(address, tuple) else (str(address), "")
        common = {
            **base_environ(cfg),
            **_REQUEST_KEYS,
            "SCRIPT_NAME": "",
            "SERVER_NAME": name,
            "SERVER_PORT": str(port),
            "wsgi.multithread": True,
            "wsgi.url_scheme": "http" if tls is None else "https",
        }
        self.heads = RequestHeadParser(
            common,
            max_line=cfg.limit_request_line or 8190,
            max_fields=cfg.limit_request_fields,
            max_field=cfg.limit_request_field_size or 8190,
        )


def _named(received: bytes) -> tuple[str, str]:
    """The method and the path of a request that may not be HTTP at all."""
    words = received.partition(b"\n")[0][:LONGEST_LOGGED].decode("latin-1").split(maxsplit=2)
    return (words[0], words[1]) if len(words) > 1 else ("-", "-")


# --- the response to one request

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade"}
)
_KNOWN_HEADERS: Final = 16

Headers = list[tuple[str, str]]


class ResponseHead:
    """The status line and headers of an application, rendered except for framing, connection and date.

    `declared` is the application's Content-Length, or None. `omits_body` is true for the statuses without a body.
    `upgrades`: another protocol follows the head, whose headers say which.
    """

    __slots__ = ("closes", "declared", "omits_body", "start", "upgrades")

    def __init__(self, status: str, headers: Headers) -> None:
        """Raises ValueError for an invalid status or header."""
        if not status[:3].isdecimal() or status[3:4] not in (" ", ""):
            raise ValueError(f"invalid response status {status!r}")
        self.omits_body = status.startswith(("1", "204", "304"))
        self.upgrades = status.startswith("101")
        self.declared: int | None = None
        self.closes = False
        lines = [f"HTTP/1.1 {status}\r\n"]
        for name, value in headers:
            lower = name.lower()
            if lower in _HOP_BY_HOP and not self.upgrades:
                self.closes = self.closes or (lower == "connection" and value.lower() == "close")
                continue
            if lower == "content-length":
                self.declared = int(value)
                if status.startswith(("1", "204")):
                    continue
            lines.append(f"{name}: {value}\r\n")
        self.start = "".join(lines).encode("latin-1")
        # One count for all lines: a line break inside a value would let a client forge a header.
        if self.start.count(b"\n") != len(lines) or self.start.count(b"\r") != len(lines):
            raise ValueError("a response header contains a line break")


# The latest heads by their status and headers, because applications repeat themselves.
ResponseHeads = Memo[tuple[object, ...], ResponseHead]


_Failure = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

# How long a stream may occupy the hub.
_TURN_NS: Final = 5_000_000
_BODY_KEYS: Final = (BODY_KEY, "wsgi.input")


class Transport(Protocol):
    """The part of a connection that a response uses."""

    def is_closing(self) -> bool:
        """True if this response is the last one because the server stops. Called when the head is sent."""

    def send(self, parts: list[Buffer], size: int) -> None:
        """Send all parts, `size` bytes together. Takes over the list. Raises ClientGone if the client has left."""

    def let_others_run(self) -> None:
        """Let other connections run."""


class Response:
    """The response to one request. `keep_alive` tells afterwards whether the connection may carry another one, and
    `size` how many bytes were sent, the head included. `began_ns` is when sending began, of a traced request only.

    A list or tuple of buffers is sent at once, with its length. Any other iterable is streamed, in chunks if the
    application does not declare the length. The parts may be any contiguous buffers.
    """

    __slots__ = (
        "_chunked",
        "_clock",
        "_head",
        "_headers",
        "_heads",
        "_left",
        "_omits_body",
        "_transport",
        "began_ns",
        "is_http_1_0",
        "keep_alive",
        "size",
        "started",
        "status",
    )

    _head: ResponseHead
    _headers: Headers

    def __init__(self, transport: Transport, head: HttpHead, heads: ResponseHeads, clock: CoarseClock) -> None:
        self._transport = transport
        self._heads = heads
        self._clock = clock
        self.is_http_1_0 = not head.minor_version
        self._omits_body = head.is_head_request
        self._chunked = False
        self._left: int | None = None  # bytes that are missing for the declared Content-Length
        self.status = ""
        self.keep_alive = head.keep_alive
        self.started = False
        self.size = 0
        self.began_ns = 0

    def run(self, application: WSGIApplication, environ: dict[str, Any]) -> None:
        """Call the application and send what it returns. Raises the application's exceptions, and ClientGone."""
        parts = application(environ, self.start_response)
        if TRACES_KEY in environ:
            self.began_ns = monotonic_ns()
        if isinstance(parts, (list, tuple)) and not self.started:
            whole, size = self._whole(parts)
            # The parts and the request's body may lie in shared memory, and the client may be slow. So no reference may
            # remain here, except in `whole`, which the transport takes over.
            del parts
            for name in _BODY_KEYS:
                environ.pop(name, None)
            self.size = size
            self._transport.send(whole, size)
            return
        try:
            turn_ns = perf_counter_ns()
            for part in parts:
                self.write(part)
                if perf_counter_ns() - turn_ns > _TURN_NS:
                    # Parts that are always ready, and a client that always reads them, would stop the hub.
                    self._transport.let_others_run()
                    turn_ns = perf_counter_ns()
            if not self.started:
                head = self._head_bytes(0)
                self.started = True
                self._send([head])
            elif self._chunked:
                self._send([b"0\r\n\r\n"])
            if self._left and not self._omits_body:
                self.keep_alive = False  # bytes are missing: only the end of the connection tells the client
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()

    def start_response(
        self, status: str, headers: Headers, exc_info: _Failure | None = None
    ) -> Callable[[bytes], object]:
        if exc_info is not None and exc_info[1] is not None and self.started:
            raise exc_info[1].with_traceback(exc_info[2])
        if exc_info is None and self.status:
            raise AssertionError("start_response was called twice")
        self.status = status
        self._headers = headers
        return self.write

    def write(self, part: Buffer) -> None:
        """Send one part of a streamed body, with the head before the first part."""
        size = size_of(part)
        if not size:
            return
        parts: list[Buffer] = [] if self.started else [self._head_bytes(None)]
        self.started = True
        if self._chunked:
            parts += (b"%x\r\n" % size, part, b"\r\n")
        elif not self._omits_body:
            if self._left is not None:
                self._left -= size
                if self._left < 0:
                    raise ValueError("the application sent more than the Content-Length that it declared")
            parts.append(part)
        if parts:
            self._send(parts)

    def _send(self, parts: list[Buffer]) -> None:
        size = sum(map(size_of, parts))
        self.size += size
        self._transport.send(parts, size)

    def _whole(self, parts: Iterable[Buffer]) -> tuple[list[Buffer], int]:
        size = 0
        filled: list[Buffer] = [b""]
        for part in parts:
            part_size = len(part) if type(part) is bytes else size_of(part)
            if part_size:
                size += part_size
                filled.append(part)
        filled[0] = head = self._head_bytes(size)
        self.started = True
        return ([head], len(head)) if self._omits_body else (filled, size + len(head))

    def _head_bytes(self, size: int | None) -> bytes:
        """The head of a body of `size` bytes; None: the size is unknown. Raises ValueError for an invalid head.

        Chooses the framing of the body if the application did not declare its length.
        """
        key = (self.status, *self._headers)
        head = self._heads.get(key)
        if head is None:
            head = ResponseHead(self.status, self._headers)
            if len(self._headers) <= _KNOWN_HEADERS and len(head.start) <= 1024:
                self._heads[key] = head
        self._omits_body = self._omits_body or head.omits_body
        framing = b""
        if head.upgrades:
            return head.start + self._clock.date_end
        if head.declared is not None:
            if size is not None and size != head.declared and not self._omits_body:
                raise ValueError(
                    f"the application declared a Content-Length of {head.declared} and returned {size} bytes"
                )
            self._left = head.declared
        elif size is not None and not head.omits_body:
            framing = b"Content-Length: %d\r\n" % size if size or not self._omits_body else b""
        elif not self._omits_body:
            self._chunked = not self.is_http_1_0
            if self._chunked:
                framing = b"Transfer-Encoding: chunked\r\n"
            else:
                self.keep_alive = False
        if head.closes or self._transport.is_closing():
            self.keep_alive = False
        if not self.keep_alive:
            framing += b"Connection: close\r\n"
        elif self.is_http_1_0:
            framing += b"Connection: keep-alive\r\n"
        return head.start + framing + self._clock.date_end
