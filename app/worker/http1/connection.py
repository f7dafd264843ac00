"""One HTTP/1 connection: requests in, responses out, one greenlet.

Source: docs/architecture.md section 3 (fair waiting, one buffer per body, one `sendmsg` per response).
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from wsgiref.types import WSGIApplication

import gevent
from gunicorn.http.wsgi import base_environ

from trident.app.worker.body_input import BodyInput
from trident.app.worker.connection import APPLICATION, IDLE, NEVER, ClientGone, Connection, Connections, Phase
from trident.app.worker.http1.request import (
    HEAD_END,
    MAX_HEAD_SIZE,
    NO_MEMORY,
    PLAIN_TEXT,
    ChunkedBody,
    Refusal,
    RequestHead,
    RequestHeadParser,
)
from trident.app.worker.http1.response import Response, ResponseHeads
from trident.app.worker.io import SendBatching
from trident.app.worker.tls import ServerTls, TlsSocket, is_plain_http
from trident.core.buffers import Allocate, RequestBody
from trident.core.frontend.request import NOT_NOTED, Span
from trident.core.http.application import log_request
from trident.core.http.front_end import RECEIVED_KEY, TRACES_KEY
from trident.core.http.reply import ARRIVED_KEY, BODY_KEY, CALLER_KEY, CLIENT_GONE_KEY
from trident.core.http.stream import UPGRADE_KEY, ModelStream
from trident.core.inference.request import Caller
from trident.core.observability.switches import SWITCHES, TraceGate

if TYPE_CHECKING:
    from trident.app.worker.web_socket import WebSocket
import json

from trident.core.http.errors import REQUEST_ID_KEY
from trident.core.http.front_end import INFERENCE_KEY, PROBE_KEY, InferenceNote

log = logging.getLogger("trident.http")

_RECEIVE_SIZE: Final = 16384
# Of a chunk, in one step.
_RECEIVE_MOST: Final = 1 << 20
_MAX_DISCARDED: Final = 64 << 20
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# Enough of a request for its line in the access log.
_SHOWN: Final = 2048


class Http1Connection(Connection):
    """Serves one socket until its end. Hub thread only; `client_gone` from the greenlet that serves the request."""

    __slots__ = ("_began_ns", "_body", "_buffer", "_caller", "_received", "_received_ns", "_service", "_web_socket")

    def __init__(self, sock: socket.socket | TlsSocket, peer: Any, service: Http1Service) -> None:
        """`sock` is connected, and does not block."""
        super().__init__(
            sock,
            peer,
            service.clock,
            service.send_batching,
            service.connections.open,
            shares_memory=service.allocate is not None,
        )
        self._service = service
        self._buffer = b""
        self._caller = Caller()
        self._body: RequestBody | None = None
        # For the access log only: the start of the current request and its time, 0 before its first byte.
        self._received = b""
        self._began_ns = 0
        # The first byte of the current request, in nanoseconds of the monotonic clock; 0 unless it may be traced.
        self._received_ns = 0
        self._web_socket: WebSocket | None = None

    def serve(self) -> None:
        """Answer request after request. Returns when the connection is closed."""
        connections = self._service.connections
        connections.open.add(self)
        try:
            if isinstance(self._sock, TlsSocket):
                self._begin_tls(self._sock)
            while self._serve_one():
                self.phase = IDLE
                self.since = self._clock.now
        except Refusal as refusal:
            self._refuse(refusal)
        except (ClientGone, OSError) as ending:
            log.debug("connection of %s ended: %s", self._peer, ending)
        finally:
            self._caller.is_open = False
            connections.open.discard(self)
            connections.last_end = self._clock.now
            self.close()

    def _begin_tls(self, tls: TlsSocket) -> None:
        """Raises OSError, and Refusal for a client that speaks plain HTTP."""
        try:
            self.shake_hands(tls)
        except OSError as error:
            if is_plain_http(error):
                self._sock = tls.plain()
                raise Refusal(400, PLAIN_TEXT) from error
            raise

    def _serve_one(self) -> bool:
        """Receive one request and answer it. Returns whether the connection continues."""
        buffer = self._buffer
        if buffer:
            self.take_turn()  # a pipelined request
        else:
            buffer = self.receive(_RECEIVE_SIZE)
            if not buffer:
                return False
        if SWITCHES.access:
            self._began_ns = time.perf_counter_ns()
            self._received = buffer[:_SHOWN]
        else:
            self._began_ns = 0
        self._received_ns = time.monotonic_ns() if self._service.trace_gate.is_open else 0
        end = buffer.find(HEAD_END) + 4
        head = self._service.heads.known.get(buffer[:end])
        if head is None:
            self._buffer = buffer
            head = self._read_head()
            buffer = self._buffer
            end = buffer.find(HEAD_END) + 4
        environ = head.environ.copy()
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = self._peer
        if not head.is_plain:
            if head.expects_continue:
                self.send([_CONTINUE], len(_CONTINUE))
            if head.is_chunked:
                environ[BODY_KEY] = self._receive_chunks(buffer[end:])
                environ["CONTENT_LENGTH"] = str(len(environ[BODY_KEY]))
                return self._answer(head, environ)
            if head.upgrades:
                return self._upgrade(head, environ, buffer[end:])
        body_end = end + head.length
        self._buffer = buffer[body_end:]
        if len(buffer) >= body_end:
            environ[BODY_KEY] = buffer[end:body_end]
        else:
            environ[BODY_KEY] = self._receive_body(head.length, buffer[end:], self._service.binary_offset(environ))
        return self._answer(head, environ)

    def _read_head(self) -> RequestHead:
        """The head at the start of the buffer, completed from the socket."""
        heads = self._service.heads
        self.begin(Phase.HEAD)
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

    def _receive_chunks(self, part: bytes) -> bytes:
        """A chunked body that begins with `part`. What follows it stays in the buffer."""
        self.begin(Phase.BODY)
        body = ChunkedBody(self._service.limits.max_body_size)
        while not body.feed(part):
            part = self.receive(min(max(body.missing, _RECEIVE_SIZE), _RECEIVE_MOST))
            if not part:
                raise ClientGone(f"{len(body.content)} bytes of the body and not its end were received")
            self.since = self._clock.now
        self._buffer = body.rest
        return bytes(body.content)

    def _receive_body(self, length: int, first: bytes, offset: int) -> memoryview:
        """A body of `length` bytes that begins with `first`, aligned at `offset`, straight from the socket."""
        self.begin(Phase.BODY)
        self.moves_since = self.since
        try:
            body = self._body = RequestBody(length, first, offset, self._service.allocate)
            while body.got < length:
                received = self.receive_body(body)
                if not received:
                    raise ClientGone(f"{body.got} of {length} bytes of the body were received")
                body.got += received
                self.since = self._clock.now
        except MemoryError:
            raise Refusal(503, NO_MEMORY.format(length)) from None
        finally:
            self._body = None
            self.moves_since = NEVER
        return body.memory

    def _upgrade(self, head: RequestHead, environ: dict[str, Any], rest: bytes) -> bool:
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

    def _answer(self, head: RequestHead, environ: dict[str, Any]) -> bool:
        """Let the application answer. Returns whether the connection continues."""
        service = self._service
        body = environ[BODY_KEY]
        environ[CLIENT_GONE_KEY] = self.client_gone
        environ[ARRIVED_KEY] = time.monotonic_ns()
        environ[CALLER_KEY] = self._caller
        environ["wsgi.input"] = BytesIO(body) if type(body) is bytes else BodyInput(memoryview(body))
        del body  # see Response.run
        response = Response(self, head, service.response_heads, self._clock)
        self.phase = APPLICATION
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
            raise Refusal(500, "internal server error") from None
        if self._began_ns:
            self._log_access(environ, response)
        if response.began_ns:
            self._end_traces(environ, (response.began_ns, time.monotonic_ns()))
        return response.keep_alive and not service.connections.closing

    def _end_traces(self, environ: dict[str, Any], sent: Span) -> None:
        if TRACES_KEY in environ:
            self._service.end_traces(environ, sent)

    def _log_access(self, environ: dict[str, Any], response: Response, *, aborted: bool = False) -> None:
        if self._began_ns and response.status:
            status = int(response.status[:3])
            log_answered(self._peer[0], environ, status, self._began_ns, response.size, aborted=aborted)

    def _log_refusal(self, refusal: Refusal, size: int) -> None:
        if self._began_ns:
            log_refused(self._peer[0], self._received, refusal.status, self._began_ns, size)

    def is_closing(self) -> bool:
        """Whether the current request is the last one of this connection because the server stops."""
        return self._service.connections.ending

    def _copy_shared(self) -> None:
        if self._body is not None:
            self._body.leave_shared()
        super()._copy_shared()

    def leave(self) -> None:
        if self._web_socket is not None:
            self._web_socket.leave()

    def time_out(self) -> None:
        """Its phase took too long: end the connection, with 408 if a request was being received; or see whether the
        client of a WebSocket is still there."""
        if self.phase is Phase.STREAM and self._web_socket is not None:
            self._web_socket.look()
            return
        if self.phase in (Phase.HEAD, Phase.BODY):
            refusal = Refusal(408, "the request was not received in time")
            answer = refusal.response()
            self._log_refusal(refusal, len(answer))
            try:
                self._sock.send(answer)
            except OSError as error:
                log.debug("408 to %s was not sent: %s", self._peer, error)
        self.hang_up()

    def _refuse(self, refusal: Refusal) -> None:
        """Send the refusal, then discard what the client still sends, so that no reset overtakes the response."""
        log.info("%d to %s: %s", refusal.status, self._peer[0], refusal.message)
        answer = refusal.response()
        self._log_refusal(refusal, len(answer))
        try:
            self.send([answer], len(answer))
            self.begin(Phase.LINGER)
            self.end_sending()
            discarded = 0
            while discarded < _MAX_DISCARDED and (part := self.receive(_RECEIVE_SIZE)):
                discarded += len(part)
        except (ClientGone, OSError) as error:
            log.debug("refusal to %s was not received: %s", self._peer, error)


_SHUT = TraceGate()
# Every request sets these. The template already has them, so that a copy of it does not grow.
_REQUEST_KEYS: dict[str, Any] = dict.fromkeys(
    ("REMOTE_ADDR", "REMOTE_PORT", "wsgi.input", BODY_KEY, CLIENT_GONE_KEY, ARRIVED_KEY)
)


class Http1Service:
    """One application on one listening address. Hub thread only.

    `binary_offset(environ)` is the application's estimate, before the body is received, of the offset in bytes at which
    the tensors begin in it; 0 if unknown. The body is received so that they lie at a multiple of 64.
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
        self.address = address
        self.cfg = cfg
        self.connections = connections
        self.send_batching = SendBatching(gevent.get_hub())
        self.tls = tls
        self.scheme = "http" if tls is None else "https"
        self.clock = connections.clock
        self.limits = connections.limits
        self.allocate = allocate
        self.binary_offset: Callable[[dict[str, Any]], int] = getattr(application, "binary_offset", _unknown)
        self.trace_gate: TraceGate = getattr(application, "trace_gate", _SHUT)
        self.end_traces: Callable[[dict[str, Any], Span], None] = getattr(application, "end_traces", _nothing)
        self.response_heads = ResponseHeads()
        self.heads = RequestHeadParser(
            self.base_environ(),
            self.limits.max_body_size,
            max_line=cfg.limit_request_line or 8190,
            max_fields=cfg.limit_request_fields,
            max_field=cfg.limit_request_field_size or 8190,
        )

    def base_environ(self) -> dict[str, Any]:
        """The part of the WSGI environment that all requests have in common."""
        name, port = self.address[:2] if isinstance(self.address, tuple) else (str(self.address), "")
        return {
            **base_environ(self.cfg),
            **_REQUEST_KEYS,
            "SCRIPT_NAME": "",
            "SERVER_NAME": name,
            "SERVER_PORT": str(port),
            "wsgi.multithread": True,
            "wsgi.url_scheme": self.scheme,
        }


def _nothing(environ: dict[str, Any], sent: Span) -> None:
    """The application traces nothing."""


def _unknown(environ: dict[str, Any]) -> int:
    return 0


# --- the access log: a line for each request, after its response, while it is switched on. In a text format it is
# `CLIENT "METHOD PATH" STATUS name=value ...`; in JSON each value is a field of its own. A value that is not known is
# left out. docs/http.md lists the values.

_access_log = logging.getLogger("trident.access")

_LONGEST_LOGGED = 1024


def log_answered(
    client: str, environ: dict[str, Any], status: int, began_ns: int, sent: int, *, aborted: bool = False
) -> None:
    """Log a request that an application answered with a body of `sent` bytes.

    `aborted`: the client left before it had the whole response.
    """
    if PROBE_KEY in environ and not SWITCHES.probes:
        return
    length = environ.get("CONTENT_LENGTH") or ""
    fields: dict[str, object] = {
        "duration_ms": _milliseconds(began_ns),
        "received_bytes": int(length) if length.isdecimal() else 0,
        "sent_bytes": sent,
    }
    if aborted:
        fields["aborted"] = True
    if request_id := environ.get(REQUEST_ID_KEY):
        fields["request_id"] = request_id[:_LONGEST_LOGGED]
    note: InferenceNote | None = environ.get(INFERENCE_KEY)
    if note is not None:
        fields |= _inference(note)
    _write(client, environ["REQUEST_METHOD"], environ["RAW_URI"], status, fields)


def log_refused(client: str, received: bytes, status: int, began_ns: int, sent: int) -> None:
    """Log a request that the worker itself refused. `received` is the beginning of the request, as far as known."""
    method, path = _first_line(received)
    _write(client, method, path, status, {"duration_ms": _milliseconds(began_ns), "sent_bytes": sent})


def _milliseconds(began_ns: int) -> float:
    return round((time.perf_counter_ns() - began_ns) / 1_000_000, 3)


def _inference(note: InferenceNote) -> dict[str, object]:
    fields: dict[str, object] = {"model": note.model}
    if note.version > 0:
        fields["version"] = note.version
    if note.times is not None:
        fields |= {name.removeprefix("timing_"): value for name, value in note.times.parameters().items()}
    return fields


def _first_line(received: bytes) -> tuple[str, str]:
    """Method and target of a request that may be incomplete or no HTTP at all."""
    words = received.partition(b"\n")[0][:_LONGEST_LOGGED].decode("latin-1").split(maxsplit=2)
    return (words[0], words[1]) if len(words) > 1 else ("-", "-")


def _write(client: str, method: str, path: str, status: int, fields: dict[str, object]) -> None:
    text = "".join([f" {name}={_plain(value)}" for name, value in fields.items()])
    _access_log.info(
        '%s "%s %s" %d%s',
        client,
        method,
        path[:_LONGEST_LOGGED],
        status,
        text,
        extra={"client": client, "method": method, "path": path[:_LONGEST_LOGGED], "status": status, **fields},
    )


def _plain(value: object) -> str:
    """A value of a text line: quoted if it could be taken for more than one."""
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=') else text
