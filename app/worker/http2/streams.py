"""The streams of one connection."""

from __future__ import annotations

from app.worker.http2 import frames
from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault, StreamFault
from app.worker.http2.flood_guard import FloodGuard
from app.worker.http2.limits import Http2Limits
from app.worker.http2.nobody import NOBODY
from app.worker.http2.outbox import Outbox
from app.worker.http2.reset_streams import ResetStreams
from app.worker.http2.stream import Http2Stream
from app.worker.http2.stream_state import StreamState

_OPEN, _HALF_CLOSED, _CLOSED = StreamState.OPEN, StreamState.HALF_CLOSED, StreamState.CLOSED


class Streams:
    """The streams that a client has begun, the windows that it sends in, and what it has left of the flood guard.

    `open` are those that are not closed on the wire, `paused` some of them. `places_taken` counts the others as well
    whose calls have not ended. `last` is the latest stream that began, `now` the time in seconds, `peer` the client.
    Hub thread only. Source: RFC 9113 sections 5.1 and 5.2.
    """

    __slots__ = (
        "_credit",
        "_guard",
        "_limits",
        "_low",
        "_reset",
        "is_closed",
        "last",
        "now",
        "open",
        "outbox",
        "paused",
        "peer",
        "places_taken",
    )

    def __init__(self, limits: Http2Limits, outbox: Outbox, now: float, peer: str) -> None:
        self._limits = limits
        self.outbox = outbox
        self.now = now
        self.peer = peer
        self.open: dict[int, Http2Stream] = {}
        self.paused: dict[int, Http2Stream] = {}
        self.places_taken = 0
        self.last = 0
        self.is_closed = False
        self._credit = 2 * limits.window
        self._low = limits.window // 2
        self._reset = ResetStreams(limits.streams)
        self._guard = FloodGuard(limits.burst, limits.rate, now)
        outbox.put(frames.window_update(0, self._credit - frames.DEFAULT_WINDOW))

    def begin(self, id: int, expected: int | None) -> Http2Stream:
        """A new stream, without a receiver. Raises StreamFault if there is no place for it."""
        limits, outbox = self._limits, self.outbox
        if self.places_taken >= limits.streams or (outbox.unsent and outbox.is_burdened()):
            raise StreamFault(ErrorCode.REFUSED_STREAM, "no place for another stream")
        stream = self.open[id] = Http2Stream(self, id, limits.window, outbox.stream_window, expected)
        self.places_taken += 1
        return stream

    def refuse(self, id: int, code: int) -> None:
        """Refuse a stream that has not begun here. Raises ConnectionFault if that happens too often."""
        self._reset.add(id)
        self.outbox.put(frames.rst_stream(id, code))
        self.spend("streams that are refused")

    def count_data(self, id: int, length: int, size: int, ends: int) -> Http2Stream | None:
        """Count a DATA frame of `length` bytes with `size` bytes of content against the windows. Not zero: it `ends`.

        The stream, or None if its content is to be thrown away. Raises ConnectionFault.
        """
        self._credit -= length
        if self._credit < self._low:
            if self._credit < 0:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the client exceeds the connection's window")
            self._grant()
        if not size and not ends:
            self.spend("empty DATA frames")
        stream = self.open.get(id)
        if stream is None or stream.state is not _OPEN:
            self.judge_late(id, "DATA")
            return None
        stream.credit -= length
        if stream.credit < self._low:
            if stream.credit < 0:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"the client exceeds the window of stream {id}")
            if not ends:
                self._grant_stream(stream)
        if stream.expected is not None:
            stream.expected -= size
            if stream.expected < 0 or (ends and stream.expected):
                self.fail(stream, ErrorCode.PROTOCOL_ERROR)
        return stream

    def end_request(self, stream: Http2Stream) -> None:
        """The client has sent everything on `stream`."""
        if stream.state is not _OPEN:
            return
        if stream.expected:
            self.fail(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.state = _HALF_CLOSED
        stream.receiver.end()

    def judge_late(self, id: int, what: str) -> None:
        """A frame came for a stream that takes none. Raises ConnectionFault if the client must know that."""
        if id > self.last or not id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {id}, which has not begun")
        if id not in self._reset:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"{what} on stream {id}, which its client has ended")
        self.spend("frames on streams that were reset", 0.1)

    def widen(self, stream: Http2Stream, size: int) -> None:
        """The client takes `size` bytes more on `stream`."""
        if not 0 < size <= frames.LARGEST_WINDOW - stream.window:
            self.fail(stream, ErrorCode.FLOW_CONTROL_ERROR if size else ErrorCode.PROTOCOL_ERROR)
            return
        stream.window += size
        if stream.waiting is not None:
            self.outbox.wait(stream)
            self.outbox.pump()

    def cancel(self, id: int) -> None:
        """The client has reset a stream."""
        if id > self.last or not id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {id}, which has not begun")
        stream = self.open.get(id)
        if stream is not None:
            receiver = stream.receiver
            self.forget(stream)
            receiver.cancel()
        self.spend("streams that are reset")

    def cancel_all(self) -> None:
        """The connection ends."""
        self.is_closed = True
        for stream in list(self.open.values()):
            receiver = stream.receiver
            self.forget(stream)
            receiver.cancel()

    def drop_stalled(self) -> None:
        """Reset the streams whose client has taken nothing of what waits for it, for too long."""
        for stream in list(self.open.values()):
            since = stream.unsent_since
            if since is not None and self.now - since > self._limits.stall_s:
                self._drop(stream, ErrorCode.CANCEL)

    def spend(self, what: str, cost: float = 1.0) -> None:
        """Count a frame that brings nothing forward. Raises ConnectionFault if there were too many."""
        self._guard.spend(what, self.now, self.outbox.answers, cost)

    def spend_little(self) -> None:
        """Count a WINDOW_UPDATE. Clients send one with each call, and each answer gives more."""
        guard = self._guard
        guard.left -= 0.1
        if guard.left < 0:
            self.spend("WINDOW_UPDATE frames", 0)

    def fail(self, stream: Http2Stream, code: int) -> None:
        """Reset a stream because of what its client sent. Raises ConnectionFault if that happens too often."""
        self._drop(stream, code)
        self.spend("streams that fail")

    def _drop(self, stream: Http2Stream, code: int) -> None:
        receiver = stream.receiver
        self.reset(stream, code)
        receiver.cancel()

    def reset(self, stream: Http2Stream, code: int) -> None:
        """Tell the client that `stream` has ended, without a word to its receiver."""
        self._reset.add(stream.id)
        self.outbox.put(frames.rst_stream(stream.id, code))
        self.forget(stream)

    def forget(self, stream: Http2Stream) -> None:
        """`stream` is closed on the wire. Its place is free when its call has ended, too."""
        del self.open[stream.id]
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
        if stream.id in self.open and stream.state is _OPEN and stream.credit < self._low:
            self._grant_stream(stream)

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
