"""HTTP/2 without I/O: bytes in, calls out, bytes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEAD_SIZE,
    HEADERS,
    LARGEST_WINDOW,
    MARK,
    NEVER,
    PADDED,
    WINDOW_UPDATE,
    Drain,
    DrainState,
    Http2Code,
    Http2Limits,
    Pings,
    ProtocolError,
    StreamError,
    read_settings,
)
from trident.app.worker.http2.headers import HeaderSections, RequestHeads, check_dependency
from trident.app.worker.http2.streams import IncomingData, Outbox, StreamState, StreamTable, UnsentTotal
from trident.core.grpc.transport import Application

_OPEN: Final = StreamState.OPEN
_DIRECT: Final = 8192  # content of one frame from which on it is received into the call's own memory
_PADDING: Final = 261  # and priority of HEADERS
_COPIED: Final = 4096  # content up to this size is passed on as bytes of its own
_SIZES: Final = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8}
_OF_CONNECTIONS: Final = (frames.SETTINGS, frames.PING)
_read_head: Final = frames.read_head
_read_uint32: Final = frames.read_uint32


class Http2Protocol:
    """One connection of a client.

    Hub thread only. Time is given, in seconds. Source: RFC 9113.
    """

    def __init__(
        self,
        limits: Http2Limits,
        application: Application,
        wants_flush: Callable[[], None],
        now: float,
        peer: str = "",
        unsent_in_all: UnsentTotal | None = None,
    ) -> None:
        """`wants_flush` is called when `outbox` has something and was empty before.

        `peer` is the client, for the log. `unsent_in_all` is shared by the connections that share its memory.
        """
        self._limits = limits
        self._application = application
        self.last_received = self._started = now
        self.outbox = outbox = Outbox(limits, wants_flush, unsent_in_all or UnsentTotal(limits.unsent_in_all))
        outbox.put(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: limits.streams,
                    frames.INITIAL_WINDOW_SIZE: limits.window,
                    frames.MAX_FRAME_SIZE: limits.frame,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_list,
                }
            )
        )
        self.table = StreamTable(limits, outbox, now, peer)
        self.streams = self.table.open
        sections = limits.header_list + _PADDING
        self._largest = [0, sections, 5, 4, frames.DEFAULT_FRAME, -1, 8, 0, 4, sections]  # by the types of frames
        self._rest = b""
        self._data: IncomingData | None = None
        self._sections = HeaderSections(limits)
        self._has_begun = self._has_settings = False
        self._heads = RequestHeads(application, limits.header_list)
        self._pings = Pings(limits)
        self._drain = Drain()
        self._refuses = False

    # Asked by the connection

    def room(self) -> memoryview | None:
        """Memory of a call for the next bytes of the socket, then `filled`; None: they go to `receive`."""
        found = self._data
        if found is None or found.left < _DIRECT or self._rest or found.stream is None:
            return None
        return found.stream.receiver.room(found.left)

    def filled(self, size: int) -> None:
        """`size` bytes were received into the memory that `room` gave."""
        found = self._data
        assert found is not None
        assert found.stream is not None
        self.last_received = self.table.now
        found.left -= size
        found.stream.receiver.filled(size)
        if not found.left and not found.padding:
            self._end_data(found)

    def receive(self, received: bytes) -> None:
        """Take what the socket received.

        Raises ProtocolError if the connection must end; the GOAWAY that tells the client is in `out`. Afterwards
        nothing is taken any more.
        """
        if self.table.is_closed:
            return
        self.last_received = self.table.now
        if self._rest:
            received = self._rest + received
            self._rest = b""
        try:
            self._take_frames(received)
        except ProtocolError as fault:
            self.close(fault.code, str(fault))
            raise

    def tick(self, now: float) -> bool:
        """Note the time, about once a second. Returns False once the connection must end."""
        self.table.now = now
        limits = self._limits
        if not self._has_settings:
            return now - self._started < limits.handshake_s
        if (self._rest or self._data or self._sections.stream) and now - self.last_received > limits.stall_s:
            return False
        self.table.drop_stalled()
        if self._drain.state is DrainState.ASKED and now - self._drain.since > limits.drain_round_trip_s:
            self._refuse_streams()
        self._put(self._pings.due(now, self.last_received, idle=not self.streams))
        return not self._pings.has_failed(now) and not self.is_finished

    def leave_shared(self) -> None:
        """Move what has waited since the last time out of memory that others may need: messages of a client that sends
        slowly, and answers to one that reads slowly. Raises MemoryError."""
        for stream in self.streams.values():
            stream.receiver.leave_shared()
            if stream.waiting is not None:
                stream.waiting.copy()

    def drain(self) -> None:
        """Ask the client for no more streams; refuse them after a round trip."""
        self._put(self._drain.begin(self.table.now))

    @property
    def is_finished(self) -> bool:
        """True once a drain has ended, and the connection can be closed."""
        return self._refuses and not self.streams and not self.outbox.size

    def close(self, code: int, text: str = "") -> None:
        """Tell the client why the connection ends, and cancel running calls."""
        if not self.table.is_closed:
            self.outbox.put(frames.goaway(self.table.last, code, text))
        self.table.cancel_all()

    # Frames

    def _take_frames(self, received: bytes) -> None:
        """Take all that is whole of `received`, and the content of DATA as far as it came; keep the rest."""
        at, size = 0 if self._has_begun else self._begin(received), len(received)
        sections = self._sections
        while self._has_begun:
            found = self._data
            if found is not None:
                at = self._more_data(found, received, at, size)
                if found.left or found.padding:
                    return
            start = at + HEAD_SIZE
            if start > size:
                break
            length, flags, id = _read_head(received, at)
            kind, length = length & 0xFF, length >> 8
            end = start + length
            id &= LARGEST_WINDOW
            if sections.stream and (kind != CONTINUATION or id != sections.stream):
                raise ProtocolError(Http2Code.PROTOCOL_ERROR, "CONTINUATION must follow an unfinished header section")
            if kind == DATA:
                if flags & PADDED and start == size and length:
                    break
                at = self._begin_data(received, start, length, flags, id)
                continue
            if kind > CONTINUATION or kind == GOAWAY:
                if length > self._limits.frame:
                    raise _too_large(kind, length)
                self.table.spend("GOAWAYs and frames of unknown types")
                if kind == GOAWAY and id:
                    raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"GOAWAY must not be on stream {id}")
                self._data = IncomingData(None, length, 0, ends=False)
                at = start
                continue
            if length > self._largest[kind]:
                raise _too_large(kind, length)
            if end > size:
                break
            at = end
            if kind == HEADERS:
                block = sections.begin(id, flags, received[start:end])
                if block is not None:
                    self._take_block(id, block, flags & END_STREAM)
            elif kind == WINDOW_UPDATE:
                self._take_window_update(id, received[start:end])
            else:
                self._take_control(kind, flags, id, received[start:end])
        if at < size:
            self._rest = received[at:]

    def _begin(self, received: bytes) -> int:
        """The offset after the preface; 0 if it is not whole yet. Source: RFC 9113 section 3.4."""
        preface = frames.PREFACE
        if received[: len(preface)] != preface[: len(received)]:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "the client does not speak HTTP/2: it sent no preface")
        if len(received) < len(preface) + HEAD_SIZE:
            return 0
        head, flags, _ = _read_head(received, len(preface))
        if head & 0xFF != frames.SETTINGS or flags & frames.ACK:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "SETTINGS must follow the preface")
        self._has_begun = True
        return len(preface)

    # DATA

    def _begin_data(self, received: bytes, start: int, length: int, flags: int, id: int) -> int:
        """Take the head of a DATA frame, and its content if it is there; the offset after that."""
        if length > self._limits.frame:
            raise _too_large(DATA, length)
        size, padding = length, 0
        if flags & PADDED:
            padding = received[start] if length else 0
            if padding >= length:
                raise ProtocolError(Http2Code.PROTOCOL_ERROR, "the padding exceeds the frame")
            start += 1
            size = length - 1 - padding
        ends = flags & END_STREAM
        stream = self.table.count_data(id, length, size, ends)
        end = start + size
        if end <= len(received) and not padding and stream is not None:
            if size:
                stream.receiver.take(received[start:end] if size <= _COPIED else memoryview(received)[start:end])
            if ends:
                self.table.end_request(stream)
            return end
        self._data = IncomingData(stream, size, padding, ends=bool(ends))
        return start

    def _more_data(self, found: IncomingData, received: bytes, at: int, size: int) -> int:
        """Take what there is of the content of a frame; the offset after that."""
        taken = min(found.left, size - at)
        if taken:
            found.left -= taken
            if found.stream is not None:
                found.stream.receiver.take(memoryview(received)[at : at + taken])
            at += taken
        if not found.left:
            dropped = min(found.padding, size - at)
            found.padding -= dropped
            at += dropped
            if not found.padding:
                self._end_data(found)
        return at

    def _end_data(self, found: IncomingData) -> None:
        self._data = None
        if found.ends and found.stream is not None:
            self.table.end_request(found.stream)

    # HEADERS

    def _take_block(self, id: int, block: bytes, ends: int) -> None:
        """Begin a stream with a header section, or end its request. Not zero: `ends` the request."""
        table = self.table
        if id <= table.last or not id & 1:
            self._take_trailers(id, block, ends)
            return
        table.last = id
        try:
            head, expected = self._heads.known.get(block) or self._heads.read(block)
            if self._refuses:
                raise StreamError(Http2Code.REFUSED_STREAM, "the server ends")
            stream = table.begin(id, expected)
        except StreamError as fault:
            table.refuse(id, fault.code)
            return
        receiver = self._application.open(stream, head)
        if stream.state is _OPEN:
            stream.receiver = receiver
            if ends:
                table.end_request(stream)

    def _take_trailers(self, id: int, block: bytes, ends: int) -> None:
        if id > self.table.last or not id:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"a client must not begin stream {id}")
        stream = self.streams.get(id)
        try:
            self._heads.read_trailers(block)
            if not ends:
                raise StreamError(Http2Code.PROTOCOL_ERROR, "trailers that do not end their stream")
        except StreamError as fault:
            if stream is not None and stream.state is _OPEN:
                self.table.fail(stream, fault.code)
                return
        if stream is not None and stream.state is _OPEN:
            self.table.end_request(stream)
        else:
            self.table.judge_late(id, "HEADERS")

    # Other frames

    def _take_control(self, kind: int, flags: int, id: int, content: bytes) -> None:
        if kind in _SIZES and len(content) != _SIZES[kind]:
            raise ProtocolError(
                Http2Code.FRAME_SIZE_ERROR, f"a frame of type {kind} has {_SIZES[kind]} bytes, not {len(content)}"
            )
        if (id != 0) is (kind in _OF_CONNECTIONS):
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"a frame of type {kind} must not be on stream {id}")
        if kind == CONTINUATION:
            block = self._sections.go_on(flags, content)
            if block is not None:
                self._take_block(id, block, self._sections.ends)
        elif kind == frames.SETTINGS:
            self._take_settings(flags, content)
        elif kind == frames.PING:
            self.table.spend("PING frames")
            if flags & frames.ACK:
                self._pings.asked_at = NEVER
                if content == MARK:
                    self._refuse_streams()
            else:
                self._pings.count(self.table.now, self.outbox.answers, idle=not self.streams)
                self.outbox.put(frames.frame(frames.PING, frames.ACK, 0, content))
        elif kind == frames.RST_STREAM:
            self.table.cancel(id)
        else:
            self.table.spend("PRIORITY frames")
            check_dependency(id, content)

    def _take_settings(self, flags: int, content: bytes) -> None:
        if flags & frames.ACK:
            if content:
                raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has no content")
            self.table.spend("SETTINGS")
            return
        values = read_settings(content)
        if self._has_settings:
            self.table.spend("SETTINGS")
        self._has_settings = True
        outbox = self.outbox
        outbox.frame = values.get(frames.MAX_FRAME_SIZE, outbox.frame)
        window = values.get(frames.INITIAL_WINDOW_SIZE)
        if window is not None:  # of all streams, of the open ones too: RFC 9113 section 6.9.2
            delta, outbox.stream_window = window - outbox.stream_window, window
            for stream in self.streams.values():
                stream.window += delta
                outbox.wait(stream)
            if any(stream.window > LARGEST_WINDOW for stream in self.streams.values()):
                raise ProtocolError(Http2Code.FLOW_CONTROL_ERROR, "SETTINGS make the window of a stream too large")
        outbox.put(frames.frame(frames.SETTINGS, frames.ACK, 0))
        outbox.pump()

    def _take_window_update(self, id: int, content: bytes) -> None:
        if len(content) != 4:
            raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, f"WINDOW_UPDATE has 4 bytes, not {len(content)}")
        (size,) = _read_uint32(content, 0)
        size &= LARGEST_WINDOW
        self.table.spend("WINDOW_UPDATE frames", 0.1)  # clients send one with each call, and each answer gives more
        stream = self.streams.get(id)
        if stream is not None:
            self.table.widen(stream, size)
        elif not id:
            if not size:
                raise ProtocolError(Http2Code.PROTOCOL_ERROR, "WINDOW_UPDATE must not be 0")
            if size > LARGEST_WINDOW - self.outbox.window:
                raise ProtocolError(Http2Code.FLOW_CONTROL_ERROR, "the connection's window exceeds 2^31-1")
            self.outbox.widen(size)
        elif id > self.table.last or not id & 1:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {id}, which has not begun")

    def _refuse_streams(self) -> None:
        self._put(self._drain.refuse(self.table.last))
        self._refuses = self._drain.state is DrainState.REFUSING

    def _put(self, content: bytes) -> None:
        if content:
            self.outbox.put(content)


def _too_large(kind: int, length: int) -> ProtocolError:
    """Source: RFC 9113 sections 4.2 and 10.5.1."""
    if kind == frames.PUSH_PROMISE:
        return ProtocolError(Http2Code.PROTOCOL_ERROR, "a client must not push")
    if kind in (HEADERS, CONTINUATION):
        return ProtocolError(Http2Code.ENHANCE_YOUR_CALM, f"the header section has too many bytes: {length}")
    return ProtocolError(Http2Code.FRAME_SIZE_ERROR, f"a frame of type {kind} must not have {length} bytes")
