"""One WebSocket (RFC 6455): frames in, frames out, and how it ends.

The greenlet of the connection reads, and another one writes, so that neither direction waits for the other. The
handshake and the frames are those of the `websockets` package, without its I/O.
Source: docs/spec/streams.md.
"""

from __future__ import annotations

import logging
from time import monotonic_ns
from typing import Any, Final

import gevent
from gevent.event import Event
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from trident.app.worker.connection import ClientGone, CoarseClock, Connection, Stage
from trident.core.errors import InvalidRequest
from trident.core.http.reply import RECEIVED_HEADERS_KEY
from trident.core.http.stream import ModelStream
from trident.core.inference.tensors import Buffer

log = logging.getLogger("trident.http")

_RECEIVE_SIZE: Final = 65536
# Bytes of pongs that the client does not take.
_MOST_CONTROL: Final = 65536
# For the close frame to leave.
_FLUSH_S: Final = 2.0
_SWITCHING: Final = 101


class WebSocket:
    """Passes the messages of `connection` to `stream`, and its messages back. Hub thread only.

    `idle_s`: a socket without requests and messages is closed after so many seconds.
    """

    def __init__(self, connection: Connection, stream: ModelStream, clock: CoarseClock, idle_s: float) -> None:
        self._connection = connection
        self._stream = stream
        self._clock = clock
        self._idle_s = idle_s
        self._protocol = ServerProtocol(max_size=stream.largest)
        # The fragments of a message that is incomplete, and whether it is text.
        self._message: bytearray | None = None
        self._is_text = False
        # Frames that answer frames of the client: they go before messages.
        self._control: list[bytes] = []
        self._control_size = 0
        self._sends_end = False
        # The writer has something to do; the reader may go on.
        self._to_write = Event()
        self._has_room = Event()
        self._is_paused = False
        self._has_pinged = False
        self._is_leaving = False
        self._is_over = False
        self._active_since = clock.now
        stream.changed = self._wake

    def accept(self, environ: dict[str, Any]) -> list[tuple[str, str]]:
        """The headers of the answer to the handshake in `environ`. Raises InvalidRequest."""
        protocol = self._protocol
        lines = [f"GET {environ['RAW_URI']} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in environ[RECEIVED_HEADERS_KEY]]
        protocol.receive_data("\r\n".join([*lines, "", ""]).encode("latin-1"))
        (request,) = protocol.events_received() or (None,)
        if not isinstance(request, Request):
            raise InvalidRequest(f"the handshake of the WebSocket cannot be read: {protocol.handshake_exc}")
        response = protocol.accept(request)
        if response.status_code != _SWITCHING:
            raise InvalidRequest(f"the handshake of the WebSocket is not accepted: {protocol.handshake_exc}")
        protocol.send_response(response)
        protocol.data_to_send()  # the worker sends the head as every other
        return [(name, value) for name, value in response.headers.raw_items() if name != "Date"]

    def serve(self, received: bytes) -> None:
        """Serve until the end; `received` came with the handshake."""
        connection = self._connection
        connection.begin(Stage.STREAM)
        writer = gevent.spawn(self._write)
        try:
            self._read(received)
            while not self._is_over and self._protocol.close_rcvd is None:
                part = connection.receive(_RECEIVE_SIZE)
                if not part:
                    break
                self._has_pinged = False
                if connection.stage is Stage.STREAM:
                    connection.since = self._clock.now
                self._read(part)
        except OSError as error:
            log.debug("a WebSocket ended: %s", error)
        except Exception:  # a fault of the server, which the client learns by the code
            log.exception("a stream failed")
            self._fail(CloseCode.INTERNAL_ERROR, "unexpected error in the server, its log says more")
        finally:
            self._is_over = True
            self._stream.end()
            self._to_write.set()
            writer.join(_FLUSH_S)
            writer.kill()

    def look(self) -> None:
        """The client has sent nothing for a while: ask it for a sign of life, or end the socket."""
        connection = self._connection
        connection.since = self._clock.now
        if self._is_paused:  # it may have answered, but is not read
            return
        if self._protocol.state is not State.OPEN:
            connection.hang_up()
        elif self._has_pinged:
            self._fail(CloseCode.INTERNAL_ERROR, "a ping was not answered")
        elif not self._stream.is_busy and self._clock.now - self._active_since > self._idle_s:
            self.leave()
        else:
            self._has_pinged = True
            self._protocol.send_ping(b"")
            self._collect()

    def leave(self) -> None:
        """Close the socket when everything that was asked for is answered; what comes from now on is not read."""
        self._is_leaving = True
        self._wake()

    def _wake(self) -> None:
        self._to_write.set()
        self._has_room.set()

    # --- the client's frames

    def _read(self, part: bytes) -> None:
        if not part:
            return
        protocol = self._protocol
        protocol.receive_data(part)
        frames = protocol.events_received()
        self._collect()
        if protocol.close_sent is not None and protocol.close_rcvd is None:
            self._linger()
        for frame in frames:
            while not self._is_over and (self._stream.is_full or self._control_size > _MOST_CONTROL):
                self._is_paused = True
                self._has_room.clear()
                self._has_room.wait()
            if self._is_paused:
                self._is_paused = False
                self._connection.since = self._clock.now
            if self._is_over or protocol.state is not State.OPEN:
                return
            assert isinstance(frame, Frame)
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        """Take a frame; a message goes to the stream when it is complete."""
        if frame.opcode is Opcode.CONT:
            message = self._message
            assert message is not None  # the protocol refuses others
            message += frame.data
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text = frame.opcode is Opcode.TEXT
            self._message = None
            if frame.fin:
                self._receive(bytes(frame.data))
            else:
                self._message = bytearray(frame.data)
            return
        else:
            return
        if frame.fin:
            self._message = None
            self._receive(bytes(message))

    def _receive(self, message: bytes) -> None:
        self._active_since = self._clock.now
        if self._is_leaving:
            return
        if self._is_text:
            try:
                message.decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "a text message is not UTF-8")
                return
        self._stream.receive(message, is_text=self._is_text)

    # --- frames for the client

    def _collect(self) -> None:
        """Have the writer send the protocol's output."""
        parts = self._protocol.data_to_send()
        if parts:
            self._sends_end = self._sends_end or SEND_EOF in parts
            self._control += parts
            self._control_size += sum(map(len, parts))
            self._to_write.set()

    def _write(self) -> None:
        try:
            while self._write_next():
                pass
        except (ClientGone, OSError) as error:
            log.debug("a WebSocket ended: %s", error)
        except Exception:
            log.exception("a stream failed")
        finally:
            if not self._is_over:
                self._is_over = True
                self._connection.hang_up()
            self._has_room.set()

    def _write_next(self) -> bool:
        """Send pending output, or wait for more. Returns False at the end."""
        self._to_write.clear()
        if self._control:
            parts, size = self._control, self._control_size
            self._control, self._control_size = [], 0
            self._connection.send(list[Buffer](parts), size)
            if self._sends_end:
                self._connection.end_sending()
            self._has_room.set()
            return True
        protocol, stream = self._protocol, self._stream
        if protocol.state is State.OPEN and not self._is_over:
            message = stream.take()  # which may wait
            if message is not None:
                began_ns = monotonic_ns()
                if protocol.state is State.OPEN:
                    (protocol.send_text if message.is_text else protocol.send_binary)(message.content)
                    parts = protocol.data_to_send()
                    self._connection.send(list[Buffer](parts), sum(map(len, parts)))
                    self._active_since = self._clock.now
                stream.sent(message, began_ns)
                return True
            if self._is_leaving and not stream.is_busy:
                protocol.send_close(CloseCode.GOING_AWAY, "the server stops, or nothing was asked for a long time")
                self._collect()
                self._linger()
                return True
        if self._is_over:
            return False
        self._to_write.wait()
        return True

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Close the socket because of the client."""
        self._protocol.fail(code, reason)
        self._collect()
        self._linger()

    def _linger(self) -> None:
        """Give the client a moment to read the close frame and to answer it."""
        self._stream.end()
        if self._connection.stage is not Stage.LINGER:
            self._connection.begin(Stage.LINGER)
