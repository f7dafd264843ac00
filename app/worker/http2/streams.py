"""The streams of one connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    Http2Code,
    Http2Limits,
    ProtocolError,
    StreamError,
)
from trident.app.worker.http2.headers import block_of
from trident.core.grpc.transport import CallStream, HeaderFields, Receiver
from trident.core.inference.tensors import Buffer


class StreamState(Enum):
    """A client's stream as the server sees it. Source: RFC 9113 section 5.1, without those of server push.

        (idle) -> OPEN -> HALF_CLOSED -> CLOSED
                      `------------------^

    A stream that the server has ended before its client has is reset, so it is CLOSED as well.
    """

    OPEN = "both sides may send"
    HALF_CLOSED = "the client has sent everything"
    CLOSED = "nothing can be sent"


def copy_of(part: memoryview) -> memoryview:
    """The part itself if it is a copy already."""
    return part if isinstance(part.obj, bytes) else memoryview(bytes(part))


class Unsent:
    """DATA that waits for a window or for the socket, and the trailers that follow it.

    `size` is in bytes, `since` the time in seconds at which the client last took some.
    """

    __slots__ = ("_parts", "since", "size", "trailers")

    def __init__(self, now: float) -> None:
        self._parts: deque[memoryview] = deque()
        self.size = 0
        self.trailers: HeaderFields | None = None
        self.since = now

    def add(self, parts: Sequence[Buffer], size: int) -> None:
        self._parts += [memoryview(part) for part in parts]
        self.size += size

    def copy(self) -> None:
        """Keep copies, and let go of the memory that the parts lie in, which others may need. Raises MemoryError."""
        self._parts = deque(copy_of(part) for part in self._parts)

    def cut(self, size: int) -> list[Buffer]:
        self.size -= size
        cut: list[Buffer] = []
        while size:
            part = self._parts.popleft()
            if len(part) > size:
                self._parts.appendleft(part[size:])
                part = part[:size]
            size -= len(part)
            cut.append(part)
        return cut


class UnsentTotal:
    """Counts `size` bytes of the connections that share it. Hub thread only."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0


_TURN: Final = 262144  # bytes of a stream, until the next one that waits has its turn
# The same while no other waits: each piece costs some Python, and an answer that comes meanwhile waits for the piece.
_ALONE: Final = 4 << 20


class Outbox:
    """The bytes for the socket, and the streams whose DATA waits for the windows of the client or for the socket.

    `parts` are for the socket and have `size` bytes. `window` is what the client still takes on all streams,
    `stream_window` what it takes on a new one, `frame` its largest frame, all in bytes. `unsent` bytes wait in the
    streams. `answers` counts DATA frames and ends of streams. Source: RFC 9113 section 5.2.
    """

    def __init__(self, limits: Http2Limits, wants_flush: Callable[[], None], in_all: UnsentTotal) -> None:
        """`wants_flush` is called when there is something for the socket and there was nothing before."""
        self.high_water = limits.high_water
        self._most_unsent = limits.unsent
        self._in_all = in_all
        self._wants_flush = wants_flush
        self.parts: list[Buffer] = []
        self.size = 0
        self.window = self.stream_window = frames.DEFAULT_WINDOW
        self.frame = frames.DEFAULT_FRAME
        self.unsent = 0
        self.answers = 0
        self._ready: dict[int, Http2Stream] = {}  # those with DATA and a window for it

    @property
    def is_full(self) -> bool:
        """True while DATA should wait in the streams until the socket has taken some."""
        return self.size >= self.high_water

    def is_burdened(self, times: int = 1) -> bool:
        """True if too much waits here: over `times` the limit, or over that of all connections together."""
        in_all = self._in_all
        return self.unsent > times * self._most_unsent or (self.unsent > 0 and in_all.size > times * in_all.limit)

    def put(self, content: bytes) -> None:
        """Send whole frames."""
        self.parts.append(content)
        if not self.size:
            self._wants_flush()
        self.size += len(content)

    def put_data(self, stream: int, parts: Sequence[Buffer], size: int) -> None:
        """Send one DATA frame, for which the windows have room."""
        self.window -= size
        self.answers += 1
        self.put(frames.pack_head(size << 8 | frames.DATA, 0, stream))
        self.parts += parts
        self.size += size

    def detach(self) -> None:
        """Drop the reference to the connection; later data is not sent."""
        self._wants_flush = lambda: None

    def take(self) -> tuple[list[Buffer], int]:
        """The parts for the socket, and their size in bytes. Ask again when the socket has taken all of it."""
        taken = self.parts, self.size
        self.parts, self.size = [], 0
        return taken

    def widen(self, size: int) -> None:
        """The client takes `size` bytes more on all streams together."""
        self.window += size
        self.pump()

    def wait(self, stream: Http2Stream) -> None:
        """Note whether `stream` can send if the socket and the window of the connection allow it."""
        if stream.unsent and stream.window > 0:
            self._ready[stream.id] = stream
        else:
            self._ready.pop(stream.id, None)

    def count(self, size: int) -> None:
        """`size` bytes more wait in a stream, or fewer if it is negative."""
        self.unsent += size
        self._in_all.size += size

    def forget(self, stream: Http2Stream) -> None:
        self.count(-stream.unsent)
        self._ready.pop(stream.id, None)

    def pump(self) -> None:
        """Move as much as the windows and the socket allow, round robin over the streams."""
        ready = self._ready
        while ready and self.window > 0 and not self.is_full:
            # A stream that has more to send adds itself again, behind the others.
            stream = ready.pop(next(iter(ready)))
            stream.pump(min(self.window, self.frame, _TURN if ready else _ALONE))


class NullReceiver(Receiver):
    """Stands in for a call that has not begun, or has ended."""

    __slots__ = ()

    def room(self, size: int) -> memoryview | None:
        return None

    def filled(self, size: int) -> None:
        pass

    def take(self, content: Buffer) -> None:
        pass

    def leave_shared(self) -> None:
        pass

    def end(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    def moved(self) -> None:
        pass

    def drained(self) -> None:
        pass


NO_RECEIVER: Final = NullReceiver()


_OPEN: Final = StreamState.OPEN
_HALF_CLOSED: Final = StreamState.HALF_CLOSED
_CLOSED: Final = StreamState.CLOSED
# Any client's frame holds as much. Answers up to this size are joined to one piece.
_SMALL: Final = frames.DEFAULT_FRAME
_pack_head: Final = frames.pack_head


class Http2Stream(CallStream):
    """In bytes: `credit` is what the client may still send, `expected` what it must still send by its content-length,
    `window` what it takes. `receiver` is the call until the stream is closed; afterwards the two do not refer to each
    other in a circle. `is_released` says that the call has ended.
    """

    __slots__ = (
        "_streams",
        "credit",
        "expected",
        "id",
        "is_paused",
        "is_released",
        "receiver",
        "state",
        "waiting",
        "window",
    )

    def __init__(self, streams: StreamTable, id: int, credit: int, window: int, expected: int | None) -> None:
        self._streams = streams
        self.id = id
        self.credit = credit
        self.window = window
        self.expected = expected
        self.state = _OPEN
        self.receiver: Receiver = NO_RECEIVER
        self.is_paused = self.is_released = False
        self.waiting: Unsent | None = None

    @property
    def unsent(self) -> int:
        return self.waiting.size if self.waiting is not None else 0

    @property
    def peer(self) -> str:
        return self._streams.peer

    def send(
        self,
        headers: HeaderFields | None,
        parts: Sequence[Buffer] = (),
        size: int = 0,
        trailers: HeaderFields | None = None,
    ) -> None:
        if self.state is _CLOSED:
            return
        outbox = self._streams.outbox
        may_go = (
            self.waiting is None and size <= self.window and size <= outbox.window and outbox.size < outbox.high_water
        )
        if may_go and 0 < size <= _SMALL and headers is not None and trailers is not None:  # the ordinary answer
            head, tail = headers.block or block_of(headers), trailers.block or block_of(trailers)
            if len(head) <= _SMALL and len(tail) <= _SMALL:
                id = self.id
                outbox.window -= size
                outbox.put(b"".join((
                    _pack_head(len(head) << 8 | HEADERS, END_HEADERS, id), head,
                    _pack_head(size << 8 | DATA, 0, id), *parts,
                    _pack_head(len(tail) << 8 | HEADERS, END_HEADERS | END_STREAM, id), tail,
                )))  # fmt: skip
                self._ended()
                return
        if headers is not None:
            outbox.put(frames.headers(self.id, block_of(headers), outbox.frame, ends=False))
        if self.waiting is None and (not size or (may_go and size <= outbox.frame)):
            if size:
                self.window -= size
                outbox.put_data(self.id, parts, size)
            if trailers is not None:
                self._end(trailers)
        else:
            self._wait(parts, size, trailers)

    def pump(self, most: int) -> None:
        """Send up to `most` bytes of waiting data. Called while the stream's window is open."""
        waiting = self.waiting
        if waiting is None:
            return
        size = min(waiting.size, self.window, most)
        outbox = self._streams.outbox
        self.window -= size
        outbox.count(-size)
        outbox.put_data(self.id, waiting.cut(size), size)
        waiting.since = self._streams.now
        outbox.wait(self)
        if waiting.size:
            self.receiver.moved()
            return
        self.waiting = None
        if waiting.trailers is not None:
            self._end(waiting.trailers)
        else:
            self.receiver.drained()

    def pause(self) -> None:
        if not self.is_paused and self.state is not _CLOSED:
            self.is_paused = True
            self._streams.paused[self.id] = self

    def resume(self) -> None:
        if self.is_paused and self.state is not _CLOSED:
            self.is_paused = False
            self._streams.resumed(self)

    def reset(self) -> None:
        if self.state is not _CLOSED:
            self._streams.reset(self, Http2Code.CANCEL)

    def release(self) -> None:
        if not self.is_released:
            self.is_released = True
            if self.state is _CLOSED:
                self._streams.places_taken -= 1

    def _wait(self, parts: Sequence[Buffer], size: int, trailers: HeaderFields | None) -> None:
        outbox = self._streams.outbox
        if outbox.is_burdened(4):
            self._streams.reset(self, Http2Code.ENHANCE_YOUR_CALM)
            return
        waiting = self.waiting
        if waiting is None:
            waiting = self.waiting = Unsent(self._streams.now)
        waiting.add(parts, size)
        waiting.trailers = trailers
        outbox.count(size)
        outbox.wait(self)
        outbox.pump()

    def _end(self, trailers: HeaderFields) -> None:
        outbox = self._streams.outbox
        outbox.put(frames.headers(self.id, block_of(trailers), outbox.frame, ends=True))
        self._ended()

    def _ended(self) -> None:
        """The end has been sent. A client that has more to say is told to stop. Source: RFC 9113 section 8.1."""
        streams = self._streams
        streams.outbox.answers += 1
        if self.state is _OPEN:
            streams.reset(self, Http2Code.NO_ERROR)
        else:
            streams.forget(self)


class StreamTable:
    """The streams that a client has begun, the windows that it sends in, and what it may still spend on frames that
    bring nothing forward: resets, pings, settings, empty frames.

    `limits.burst` of them are allowed in a row, and `limits.rate` more each second, and one for each answer. A client
    that cancels many of its calls gets as many answers besides; one that only opens and resets streams gets none.

    `open` are those that are not closed on the wire, `paused` some of them. `places_taken` counts the others as well
    whose calls have not ended. `last` is the latest stream that began, `now` the time in seconds, `peer` the client.
    Hub thread only. Source: RFC 9113 sections 5.1 and 5.2.
    """

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
        # The latest streams that were reset here. What their client sent before it knew is not an error (RFC 9113
        # section 5.1, "closed").
        self._reset: dict[int, None] = {}
        # Of frames that bring nothing forward; when it was filled last, and the answers until then.
        self._budget = float(limits.burst)
        self._spent_at = now
        self._answers = 0
        outbox.put(frames.window_update(0, self._credit - frames.DEFAULT_WINDOW))

    def begin(self, id: int, expected: int | None) -> Http2Stream:
        """A new stream, without a receiver. Raises StreamError if there is no place for it."""
        limits, outbox = self._limits, self.outbox
        if self.places_taken >= limits.streams or (outbox.unsent and outbox.is_burdened()):
            raise StreamError(Http2Code.REFUSED_STREAM, "no place for another stream")
        stream = self.open[id] = Http2Stream(self, id, limits.window, outbox.stream_window, expected)
        self.places_taken += 1
        return stream

    def refuse(self, id: int, code: int) -> None:
        """Refuse a stream that has not begun here. Raises ProtocolError if that happens too often."""
        self._send_reset(id, code)
        self.spend("streams that are refused")

    def count_data(self, id: int, length: int, size: int, ends: int) -> Http2Stream | None:
        """Count a DATA frame of `length` bytes with `size` bytes of content against the windows. Not zero: it `ends`.

        The stream, or None if its content is to be thrown away. Raises ProtocolError.
        """
        self._credit -= length
        if self._credit < self._low:
            if self._credit < 0:
                raise ProtocolError(Http2Code.FLOW_CONTROL_ERROR, "the client exceeds the connection's window")
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
                raise ProtocolError(Http2Code.FLOW_CONTROL_ERROR, f"the client exceeds the window of stream {id}")
            if not ends:
                self._grant_stream(stream)
        if stream.expected is not None:
            stream.expected -= size
            if stream.expected < 0 or (ends and stream.expected):
                self.fail(stream, Http2Code.PROTOCOL_ERROR)
        return stream

    def end_request(self, stream: Http2Stream) -> None:
        """The client has sent everything on `stream`."""
        if stream.state is not _OPEN:
            return
        if stream.expected:
            self.fail(stream, Http2Code.PROTOCOL_ERROR)
            return
        stream.state = _HALF_CLOSED
        stream.receiver.end()

    def judge_late(self, id: int, what: str) -> None:
        """A frame came for a stream that takes none. Raises ProtocolError if the client must know that."""
        if id > self.last or not id & 1:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"{what} on stream {id}, which has not begun")
        if id not in self._reset:
            raise ProtocolError(Http2Code.STREAM_CLOSED, f"{what} on stream {id}, which its client has ended")
        self.spend("frames on streams that were reset", 0.1)

    def widen(self, stream: Http2Stream, size: int) -> None:
        """The client takes `size` bytes more on `stream`."""
        if not 0 < size <= frames.LARGEST_WINDOW - stream.window:
            self.fail(stream, Http2Code.FLOW_CONTROL_ERROR if size else Http2Code.PROTOCOL_ERROR)
            return
        stream.window += size
        if stream.waiting is not None:
            self.outbox.wait(stream)
            self.outbox.pump()

    def cancel(self, id: int) -> None:
        """The client has reset a stream."""
        if id > self.last or not id & 1:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"RST_STREAM on stream {id}, which has not begun")
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
        """Reset the streams whose client has read none of the waiting data for too long."""
        for stream in list(self.open.values()):
            if stream.waiting is not None and self.now - stream.waiting.since > self._limits.stall_s:
                self._drop(stream, Http2Code.CANCEL)

    def spend(self, what: str, cost: float = 1.0) -> None:
        """Count a frame that brings nothing forward. Raises ProtocolError if there were too many."""
        self._budget -= cost
        if self._budget >= 0:
            return
        limits, answers = self._limits, self.outbox.answers
        gained = (self.now - self._spent_at) * limits.rate + answers - self._answers
        self._spent_at, self._answers = self.now, answers
        self._budget = min(self._budget + gained, float(limits.burst))
        if self._budget < 0:
            raise ProtocolError(Http2Code.ENHANCE_YOUR_CALM, f"too many {what}")

    def fail(self, stream: Http2Stream, code: int) -> None:
        """Reset a stream because of what its client sent. Raises ProtocolError if that happens too often."""
        self._drop(stream, code)
        self.spend("streams that fail")

    def _drop(self, stream: Http2Stream, code: int) -> None:
        receiver = stream.receiver
        self.reset(stream, code)
        receiver.cancel()

    def reset(self, stream: Http2Stream, code: int) -> None:
        """Tell the client that `stream` has ended, without a word to its receiver."""
        self._send_reset(stream.id, code)
        self.forget(stream)

    def _send_reset(self, id: int, code: int) -> None:
        if len(self._reset) >= self._limits.streams:
            del self._reset[next(iter(self._reset))]
        self._reset[id] = None
        self.outbox.put(frames.rst_stream(id, code))

    def forget(self, stream: Http2Stream) -> None:
        """`stream` is closed on the wire. Its place is free when its call has ended, too."""
        del self.open[stream.id]
        stream.state = _CLOSED
        stream.receiver = NO_RECEIVER
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


class IncomingData:
    """The rest of a frame: `left` bytes of content, then `padding`.

    `stream` is None if what comes is thrown away. `ends` says that the frame ends the stream.
    """

    __slots__ = ("ends", "left", "padding", "stream")

    def __init__(self, stream: Http2Stream | None, left: int, padding: int, *, ends: bool) -> None:
        self.stream = stream
        self.left = left
        self.padding = padding
        self.ends = ends
