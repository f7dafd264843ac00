"""One stream of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from app.worker.http2 import frames
from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from app.worker.http2.header_encoder import block_of
from app.worker.http2.nobody import NOBODY
from app.worker.http2.stream_state import StreamState
from app.worker.http2.unsent import Unsent
from core.grpc.transport import HeaderFields, Receiver, Stream
from core.inference.tensors import Buffer

if TYPE_CHECKING:
    from app.worker.http2.streams import Streams

_OPEN: Final = StreamState.OPEN
_CLOSED: Final = StreamState.CLOSED
# Any client's frame holds as much. Answers up to this size are joined to one piece.
_SMALL: Final = frames.DEFAULT_FRAME
_pack_head: Final = frames.pack_head


class Http2Stream(Stream):
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

    def __init__(self, streams: Streams, id: int, credit: int, window: int, expected: int | None) -> None:
        self._streams = streams
        self.id = id
        self.credit = credit
        self.window = window
        self.expected = expected
        self.state = _OPEN
        self.receiver: Receiver = NOBODY
        self.is_paused = self.is_released = False
        self.waiting: Unsent | None = None

    @property
    def unsent(self) -> int:
        return self.waiting.size if self.waiting is not None else 0

    @property
    def unsent_since(self) -> float | None:
        """When the client last took some of what waits for it, in seconds; None if nothing waits."""
        return self.waiting.since if self.waiting is not None else None

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
        """Send up to `most` bytes of what waits. Called while the stream's window is open."""
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
            self._streams.reset(self, ErrorCode.CANCEL)

    def release(self) -> None:
        if not self.is_released:
            self.is_released = True
            if self.state is _CLOSED:
                self._streams.places_taken -= 1

    def _wait(self, parts: Sequence[Buffer], size: int, trailers: HeaderFields | None) -> None:
        outbox = self._streams.outbox
        if outbox.is_burdened(4):
            self._streams.reset(self, ErrorCode.ENHANCE_YOUR_CALM)
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
            streams.reset(self, ErrorCode.NO_ERROR)
        else:
            streams.forget(self)
