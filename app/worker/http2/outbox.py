"""What a connection sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from app.worker.http2 import frames
from app.worker.http2.limits import Http2Limits
from app.worker.http2.unsent_total import UnsentTotal
from core.inference.tensors import Buffer

if TYPE_CHECKING:
    from app.worker.http2.stream import Http2Stream

_TURN: Final = 262144  # bytes of a stream, until the next one that waits has its turn
# The same while no other waits: each piece costs some Python, and an answer that comes meanwhile waits for the piece.
_ALONE: Final = 4 << 20


class Outbox:
    """The bytes for the socket, and the streams whose DATA waits for the windows of the client or for the socket.

    `parts` are for the socket and have `size` bytes. `window` is what the client still takes on all streams,
    `stream_window` what it takes on a new one, `frame` its largest frame, all in bytes. `unsent` bytes wait in the
    streams. `answers` counts DATA frames and ends of streams. Source: RFC 9113 section 5.2.
    """

    __slots__ = (
        "_in_all",
        "_most_unsent",
        "_ready",
        "_wants_flush",
        "answers",
        "frame",
        "high_water",
        "parts",
        "size",
        "stream_window",
        "unsent",
        "window",
    )

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
        """Whether DATA should wait in the streams until the socket has taken some."""
        return self.size >= self.high_water

    def is_burdened(self, times: int = 1) -> bool:
        """Whether more waits than this connection may have, `times` that; all connections that make others wait are."""
        return self.unsent > times * self._most_unsent or (self.unsent > 0 and self._in_all.is_exceeded(times))

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
        self.put(frames.data_head(stream, size))
        self.parts += parts
        self.size += size

    def detach(self) -> None:
        """Nobody sends what comes from now on, and nothing here refers to the connection any more."""
        self._wants_flush = _ignore

    def take(self) -> tuple[list[Buffer], int]:
        """What is for the socket now, and its size in bytes. Ask again when the socket has taken all of it."""
        taken = self.parts, self.size
        self.parts, self.size = [], 0
        return taken

    def widen(self, size: int) -> None:
        """The client takes `size` bytes more on all streams together."""
        self.window += size
        self.pump()

    def set_stream_window(self, window: int, streams: Iterable[Http2Stream]) -> None:
        """The client has set the window of all streams, of the open ones too. Source: RFC 9113 section 6.9.2."""
        delta, self.stream_window = window - self.stream_window, window
        for stream in streams:
            stream.window += delta
            self.wait(stream)

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
        """Move what the windows and the socket allow, of each stream in turn."""
        ready = self._ready
        while ready and self.window > 0 and not self.is_full:
            # A stream that has more to send adds itself again, behind the others.
            stream = ready.pop(next(iter(ready)))
            stream.pump(min(self.window, self.frame, _TURN if ready else _ALONE))


def _ignore() -> None:
    """Stands in for a connection that has ended."""
