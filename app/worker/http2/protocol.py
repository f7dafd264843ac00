"""HTTP/2 without I/O: bytes in, calls out, bytes out."""

from __future__ import annotations

from collections.abc import Callable

from app.worker.http2 import frames
from app.worker.http2.client_settings import read_settings
from app.worker.http2.drain import Drain, DrainState
from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault, StreamFault
from app.worker.http2.flood_guard import FloodGuard
from app.worker.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_SIZE,
    HEADERS,
    LARGEST_WINDOW,
    PADDED,
    PRIORITIZED,
    WINDOW_UPDATE,
)
from app.worker.http2.header_block import HeaderBlock
from app.worker.http2.incoming_data import IncomingData
from app.worker.http2.limits import Http2Limits
from app.worker.http2.nobody import NOBODY
from app.worker.http2.outbox import Outbox
from app.worker.http2.ping_strikes import PingStrikes
from app.worker.http2.request_heads import RequestHeads
from app.worker.http2.reset_streams import ResetStreams
from app.worker.http2.stream import Http2Stream
from app.worker.http2.stream_state import StreamState
from app.worker.http2.unsent_total import UnsentTotal
from core.grpc.transport import Application
from core.inference.tensors import Buffer

_OPEN, _HALF_CLOSED, _CLOSED = StreamState.OPEN, StreamState.HALF_CLOSED, StreamState.CLOSED
_DIRECT = 65536  # content of one frame from which on it is received into the call's own memory
_PADDING = 261  # and priority of HEADERS
_COPIED = 4096  # content up to this size is passed on as bytes of its own
_SIZES = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8}
_OF_CONNECTIONS = (frames.SETTINGS, frames.PING)
_read_head = frames.read_head


class Http2Protocol:
    """One connection of a client.

    Hub thread only. Time is given, in seconds. Source: RFC 9113.
    """

    __slots__ = (
        "_application",
        "_block",
        "_credit",
        "_data",
        "_drain",
        "_guard",
        "_has_begun",
        "_has_settings",
        "_heads",
        "_largest",
        "_last",
        "_limits",
        "_low",
        "_ping_sent",
        "_pings",
        "_refuses",
        "_reset",
        "_rest",
        "_started",
        "is_closed",
        "last_received",
        "now",
        "outbox",
        "paused",
        "peer",
        "places_taken",
        "streams",
    )

    def __init__(
        self,
        limits: Http2Limits,
        application: Application,
        wants_flush: Callable[[], None],
        now: float,
        peer: str = "",
        unsent_in_all: UnsentTotal | None = None,
    ) -> None:
        """`wants_flush` is called when `out` has something and was empty before.

        `peer` is the client, for the log. `unsent_in_all` is shared by the connections that share its memory.
        """
        self._limits = limits
        self._application = application
        self.peer = peer
        self.now = self.last_received = self._started = now
        self._ping_sent: float | None = None
        self.streams: dict[int, Http2Stream] = {}
        self.paused: dict[int, Http2Stream] = {}
        self.places_taken = 0
        self.is_closed = False
        self.outbox = Outbox(limits, wants_flush, unsent_in_all or UnsentTotal(limits.unsent_in_all))
        self._credit = 2 * limits.window
        self._low = limits.window // 2
        sections = limits.header_list + _PADDING
        self._largest = (0, sections, 5, 4, frames.DEFAULT_FRAME, -1, 8, 0, 4, sections)  # by the types of frames
        self._last = 0
        self._rest = b""
        self._data: IncomingData | None = None
        self._block: HeaderBlock | None = None
        self._has_begun = self._has_settings = False
        self._heads = RequestHeads(application, limits.header_list)
        self._reset = ResetStreams(limits.streams)
        self._guard = FloodGuard(limits.burst, limits.rate, now)
        self._pings = PingStrikes(limits)
        self._drain = Drain(limits.drain_round_trip_s)
        self._refuses = False
        self.outbox.put(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: limits.streams,
                    frames.INITIAL_WINDOW_SIZE: limits.window,
                    frames.MAX_FRAME_SIZE: limits.frame,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_list,
                }
            )
            + frames.window_update(0, self._credit - frames.DEFAULT_WINDOW)
        )

    # What the connection asks

    @property
    def out(self) -> list[Buffer]:
        return self.outbox.parts

    @property
    def out_size(self) -> int:
        return self.outbox.size

    def take_out(self) -> tuple[list[Buffer], int]:
        """What is for the socket, and its size in bytes. Ask again when the socket has taken all of it."""
        return self.outbox.take()

    def pump(self) -> None:
        """The socket took what `take_out` gave: what waits in the streams may follow."""
        self.outbox.pump()

    def is_idle(self) -> bool:
        """Whether nothing is under way in either direction."""
        return not self.streams and not self.outbox.size and not self._rest and self._block is None

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
        self.last_received = self.now
        found.left -= size
        found.stream.receiver.filled(size)
        if not found.left and not found.padding:
            self._end_data(found)

    def receive(self, received: bytes) -> None:
        """Take what the socket received.

        Raises ConnectionFault if the connection must end; the GOAWAY that tells the client is in `out`. Afterwards
        nothing is taken any more.
        """
        if self.is_closed:
            return
        self.last_received = self.now
        if self._rest:
            received = self._rest + received
            self._rest = b""
        try:
            self._take_frames(received)
        except ConnectionFault as fault:
            self.close(fault.code, str(fault))
            raise

    def tick(self, now: float) -> bool:
        """The time, about once a second. Whether the connection is to be kept."""
        self.now = now
        limits = self._limits
        if not self._has_settings:
            return now - self._started < limits.handshake_s
        if (self._rest or self._data or self._block) and now - self.last_received > limits.stall_s:
            return False
        for stream in list(self.streams.values()):
            since = stream.unsent_since
            if since is not None and now - since > limits.stall_s:
                self._drop(stream, ErrorCode.CANCEL)
        if self._drain.is_overdue(now):
            self._refuse_streams()
        return self._is_alive() and not self.is_finished

    def drain(self) -> None:
        """Ask the client for no more streams; refuse them after a round trip."""
        self._put(self._drain.begin(self.now))

    @property
    def is_finished(self) -> bool:
        """Whether a drain has come to its end, so that the connection can be closed."""
        return self._refuses and not self.streams and not self.outbox.size

    def close(self, code: int, text: str = "") -> None:
        """Tell the client why the connection ends, and cancel what runs."""
        if not self.is_closed:
            self.is_closed = True
            self.outbox.put(frames.goaway(self._last, code, text))
        for stream in list(self.streams.values()):
            receiver = stream.receiver
            self.forget(stream)
            receiver.cancel()

    # What the streams ask

    def reset(self, stream: Http2Stream, code: int) -> None:
        """Tell the client that `stream` has ended, without a word to its receiver."""
        self._reset.add(stream.id)
        self.outbox.put(frames.rst_stream(stream.id, code))
        self.forget(stream)

    def forget(self, stream: Http2Stream) -> None:
        """`stream` is closed on the wire. Its place is free when its call has ended, too."""
        del self.streams[stream.id]
        stream.state = _CLOSED
        stream.receiver = NOBODY
        if stream.is_released:
            self.places_taken -= 1
        if stream.waiting is not None:
            self.outbox.forget(stream)
            stream.waiting = None
        if stream.is_paused:
            self.resumed(stream)

    def resumed(self, stream: Http2Stream) -> None:
        """`stream` is not paused any more."""
        del self.paused[stream.id]
        if self._credit < self._low and not self.is_closed:
            self._grant()
        if stream.id in self.streams and stream.state is _OPEN and stream.credit < self._low:
            self._grant_stream(stream)

    # Frames

    def _take_frames(self, received: bytes) -> None:
        """Take all that is whole of `received`, and the content of DATA as far as it came; keep the rest."""
        at, size = 0 if self._has_begun else self._begin(received), len(received)
        while self._has_begun:
            if self._data is not None:
                at = self._more_data(self._data, received, at, size)
                if self._data is not None:
                    return
            start = at + HEAD_SIZE
            if start > size:
                break
            length, flags, id = _read_head(received, at)
            kind, length = length & 0xFF, length >> 8
            end = start + length
            id &= LARGEST_WINDOW
            if self._block is not None and (kind != CONTINUATION or id != self._block.stream):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION must follow an unfinished header section")
            if kind == DATA:
                if flags & PADDED and start == size and length:
                    break
                at = self._begin_data(received, start, length, flags, id)
                continue
            if kind > CONTINUATION or kind == GOAWAY:
                self._skip(kind, length, id)
                at = start
                continue
            if length > self._largest[kind]:
                raise _too_large(kind, length)
            if end > size:
                break
            at = end
            if kind == HEADERS:
                self._take_headers(id, flags, received[start:end])
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
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the client does not speak HTTP/2: it sent no preface")
        if len(received) < len(preface) + HEAD_SIZE:
            return 0
        head, flags, _ = _read_head(received, len(preface))
        if head & 0xFF != frames.SETTINGS or flags & frames.ACK:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS must follow the preface")
        self._has_begun = True
        return len(preface)

    def _skip(self, kind: int, length: int, id: int) -> None:
        """Throw away the content of a frame."""
        if length > self._limits.frame:
            raise _too_large(kind, length)
        self._spend("GOAWAYs and frames of unknown types")
        if kind == GOAWAY and id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"GOAWAY must not be on stream {id}")
        self._data = IncomingData(None, length, 0, ends=False)

    # DATA

    def _begin_data(self, received: bytes, start: int, length: int, flags: int, id: int) -> int:
        """Take the head of a DATA frame, and its content if it is there; the offset after that."""
        if length > self._limits.frame:
            raise _too_large(DATA, length)
        size, padding = length, 0
        if flags & PADDED:
            padding = received[start] if length else 0
            if padding >= length:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding exceeds the frame")
            start += 1
            size = length - 1 - padding
        ends = flags & END_STREAM
        self._credit -= length
        if self._credit < self._low:
            if self._credit < 0:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the client exceeds the connection's window")
            self._grant()
        stream = self.streams.get(id)
        if stream is not None and stream.state is _OPEN:
            stream.credit -= length
            if stream.credit < self._low:
                if stream.credit < 0:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"the client exceeds the window of stream {id}")
                if not ends:
                    self._grant_stream(stream)
            if stream.expected is not None:
                stream.expected -= size
                if stream.expected < 0 or (ends and stream.expected):
                    self._fail(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._late(id, "DATA")
            stream = None
        if not size and not ends:
            self._spend("empty DATA frames")
        end = start + size
        if end <= len(received) and not padding and stream is not None:
            if size:
                stream.receiver.take(received[start:end] if size <= _COPIED else memoryview(received)[start:end])
            if ends:
                self._end_request(stream)
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
            self._end_request(found.stream)

    def _end_request(self, stream: Http2Stream) -> None:
        """The client has sent everything on `stream`."""
        if stream.state is not _OPEN:
            return
        if stream.expected:
            self._fail(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.state = _HALF_CLOSED
        stream.receiver.end()

    def _late(self, id: int, what: str) -> None:
        """A frame came for a stream that takes none: an error, unless its client cannot know yet that it was reset."""
        if id > self._last or not id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {id}, which has not begun")
        if id not in self._reset:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"{what} on stream {id}, which its client has ended")
        self._spend("frames on streams that were reset", 0.1)

    def _grant(self) -> None:
        """Let the client send more on all streams, unless those that are paused hold too much."""
        window = self._limits.window
        if self.paused and sum([window - stream.credit for stream in self.paused.values()]) > self._limits.held:
            return
        self.outbox.put(frames.window_update(0, 2 * window - self._credit))
        self._credit = 2 * window

    def _grant_stream(self, stream: Http2Stream) -> None:
        if not stream.is_paused:
            self.outbox.put(frames.window_update(stream.id, self._limits.window - stream.credit))
            stream.credit = self._limits.window

    # HEADERS

    def _take_headers(self, id: int, flags: int, content: bytes) -> None:
        if flags & (PADDED | PRIORITIZED):
            content = _unpadded(id, flags, content)
        if flags & END_HEADERS:
            self._take_block(id, content, flags & END_STREAM)
        else:
            self._block = HeaderBlock(id, self._limits, flags & END_STREAM)
            self._block.add(content)

    def _take_continuation(self, flags: int, content: bytes) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION must follow an unfinished header section")
        block.add(content)
        if flags & END_HEADERS:
            self._block = None
            self._take_block(block.stream, block.whole(), block.ends)

    def _take_block(self, id: int, block: bytes, ends: int) -> None:
        """Begin a stream with a header section, or end its request. Not zero: `ends` the request."""
        if id <= self._last or not id & 1:
            self._take_trailers(id, block, ends)
            return
        self._last = id
        try:
            head, expected = self._heads.known.get(block) or self._heads.read(block)
            burdened = self.outbox.unsent and self.outbox.is_burdened()
            if self.places_taken >= self._limits.streams or burdened or self._refuses:
                raise StreamFault(ErrorCode.REFUSED_STREAM, "no place for another stream")
        except StreamFault as fault:
            self._reset.add(id)
            self.outbox.put(frames.rst_stream(id, fault.code))
            self._spend("streams that are refused")
            return
        stream = Http2Stream(self, id, self._limits.window, self.outbox.stream_window, expected)
        self.streams[id] = stream
        self.places_taken += 1
        receiver = self._application.open(stream, head)
        if stream.state is _OPEN:
            stream.receiver = receiver
            if ends:
                self._end_request(stream)

    def _take_trailers(self, id: int, block: bytes, ends: int) -> None:
        if id > self._last or not id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a client must not begin stream {id}")
        stream = self.streams.get(id)
        try:
            self._heads.read_trailers(block)
            if not ends:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers that do not end their stream")
        except StreamFault as fault:
            if stream is not None and stream.state is _OPEN:
                self._fail(stream, fault.code)
                return
        if stream is not None and stream.state is _OPEN:
            self._end_request(stream)
        else:
            self._late(id, "HEADERS")

    def _fail(self, stream: Http2Stream, code: int) -> None:
        """Reset a stream because of what its client sent. Raises ConnectionFault if that happens too often."""
        self._drop(stream, code)
        self._spend("streams that fail")

    def _drop(self, stream: Http2Stream, code: int) -> None:
        receiver = stream.receiver
        self.reset(stream, code)
        receiver.cancel()

    # Other frames

    def _take_control(self, kind: int, flags: int, id: int, content: bytes) -> None:
        if kind in _SIZES and len(content) != _SIZES[kind]:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} has {_SIZES[kind]} bytes, not {len(content)}"
            )
        if (id != 0) is (kind in _OF_CONNECTIONS):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} must not be on stream {id}")
        if kind == CONTINUATION:
            self._take_continuation(flags, content)
        elif kind == frames.SETTINGS:
            self._take_settings(flags, content)
        elif kind == frames.PING:
            self._take_ping(flags, content)
        elif kind == frames.RST_STREAM:
            self._take_reset(id)
        else:
            self._spend("PRIORITY frames")
            _check_dependency(id, content)

    def _take_settings(self, flags: int, content: bytes) -> None:
        if flags & frames.ACK:
            if content:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has no content")
            self._spend("SETTINGS")
            return
        values = read_settings(content)
        if self._has_settings:
            self._spend("SETTINGS")
        self._has_settings = True
        outbox = self.outbox
        outbox.frame = values.get(frames.MAX_FRAME_SIZE, outbox.frame)
        if frames.INITIAL_WINDOW_SIZE in values:
            outbox.set_stream_window(values[frames.INITIAL_WINDOW_SIZE], self.streams.values())
            if any(stream.window > LARGEST_WINDOW for stream in self.streams.values()):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS make the window of a stream too large")
        outbox.put(frames.frame(frames.SETTINGS, frames.ACK, 0))
        outbox.pump()

    def _take_ping(self, flags: int, content: bytes) -> None:
        self._spend("PING frames")
        if flags & frames.ACK:
            self._ping_sent = None
            if content == Drain.MARK:
                self._refuse_streams()
        else:
            self._pings.count(self.now, self.outbox.answers, idle=not self.streams)
            self.outbox.put(frames.frame(frames.PING, frames.ACK, 0, content))

    def _take_reset(self, id: int) -> None:
        if id > self._last or not id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {id}, which has not begun")
        stream = self.streams.get(id)
        if stream is not None:
            receiver = stream.receiver
            self.forget(stream)
            receiver.cancel()
        self._spend("streams that are reset")

    def _take_window_update(self, id: int, content: bytes) -> None:
        if len(content) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE has 4 bytes, not {len(content)}")
        size = int.from_bytes(content, "big") & LARGEST_WINDOW
        self._guard.left -= 0.1  # clients send one with each call, and each answer gives more
        if self._guard.left < 0:
            self._spend("WINDOW_UPDATE frames", 0)
        stream = self.streams.get(id)
        if stream is not None:
            if not 0 < size <= LARGEST_WINDOW - stream.window:
                self._fail(stream, ErrorCode.FLOW_CONTROL_ERROR if size else ErrorCode.PROTOCOL_ERROR)
                return
            stream.window += size
            if stream.waiting is not None:
                self.outbox.wait(stream)
                self.outbox.pump()
        elif not id:
            if not size:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE must not be 0")
            if size > LARGEST_WINDOW - self.outbox.window:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window exceeds 2^31-1")
            self.outbox.widen(size)
        elif id > self._last or not id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {id}, which has not begun")

    # Time

    def _is_alive(self) -> bool:
        """Ask a client that is silent for a sign of life. Whether it has given the one that it was asked for."""
        limits, now = self._limits, self.now
        if self._ping_sent is not None:
            return now - self._ping_sent < limits.keepalive_timeout_s
        silent = now - self.last_received > limits.keepalive_s
        if silent and (self.streams or limits.keepalive_without_streams):
            self._ping_sent = now
            self.outbox.put(frames.frame(frames.PING, 0, 0, b"keepaliv"))
        return True

    def _refuse_streams(self) -> None:
        self._put(self._drain.refuse(self._last))
        self._refuses = self._drain.state is DrainState.REFUSING

    def _put(self, content: bytes) -> None:
        if content:
            self.outbox.put(content)

    def _spend(self, what: str, cost: float = 1.0) -> None:
        self._guard.spend(what, self.now, self.outbox.answers, cost)


def _too_large(kind: int, length: int) -> ConnectionFault:
    """Source: RFC 9113 sections 4.2 and 10.5.1."""
    if kind == frames.PUSH_PROMISE:
        return ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client must not push")
    if kind in (HEADERS, CONTINUATION):
        return ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"the header section has too many bytes: {length}")
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} must not have {length} bytes")


def _unpadded(id: int, flags: int, content: bytes) -> bytes:
    """The header block of a HEADERS frame with padding or priority. Source: RFC 9113 section 6.2."""
    start, end = 0, len(content)
    if flags & PADDED:
        if not content:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the frame is too short for its padding")
        start, end = 1, end - content[0]
    if flags & PRIORITIZED:
        if len(content) < start + 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the frame is too short for its priority")
        _check_dependency(id, content[start:])
        start += 5
    if start > end:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding exceeds the frame")
    return content[start:end]


def _check_dependency(id: int, priority: bytes) -> None:
    """Priorities are ignored, but for this. Source: RFC 7540 section 5.3.1."""
    if int.from_bytes(priority[:4], "big") & LARGEST_WINDOW == id:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {id} depends on itself")
