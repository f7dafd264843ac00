"""A DATA frame that is being received."""

from __future__ import annotations

from app.worker.http2.stream import Http2Stream


class IncomingData:
    """What is still to come of a frame: `left` bytes of content, then `padding`.

    `stream` is None if what comes is thrown away. `ends` says that the frame ends the stream.
    """

    __slots__ = ("ends", "left", "padding", "stream")

    def __init__(self, stream: Http2Stream | None, left: int, padding: int, *, ends: bool) -> None:
        self.stream = stream
        self.left = left
        self.padding = padding
        self.ends = ends
