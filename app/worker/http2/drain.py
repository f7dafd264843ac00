"""The end of a connection that loses no call."""

from __future__ import annotations

from enum import Enum
from typing import Final

from app.worker.http2 import frames
from app.worker.http2.error_codes import ErrorCode

# What the ping between the two GOAWAYs says.
MARK: Final = b"draining"


class DrainState(Enum):
    """SERVING -> ASKED -> REFUSING. Source: RFC 9113 section 6.8."""

    SERVING = "all streams are welcome"
    ASKED = "the client is asked for no more streams, and those that it sent meanwhile are served"
    REFUSING = "new streams are refused"


class Drain:
    """Two GOAWAYs with a ping between them: what the client sent before it knew of the first one is served."""

    def __init__(self, round_trip_s: float) -> None:
        """The client has `round_trip_s` to answer the ping."""
        self._round_trip_s = round_trip_s
        self._since = 0.0
        self.state = DrainState.SERVING

    def begin(self, now: float) -> bytes:
        """The frames that ask for no more streams; empty if they have been sent."""
        if self.state is not DrainState.SERVING:
            return b""
        self.state, self._since = DrainState.ASKED, now
        return frames.goaway(frames.LARGEST_WINDOW, ErrorCode.NO_ERROR) + frames.frame(frames.PING, 0, 0, MARK)

    def is_overdue(self, now: float) -> bool:
        return self.state is DrainState.ASKED and now - self._since > self._round_trip_s

    def refuse(self, last_stream: int) -> bytes:
        """The GOAWAY that names the last stream that is served; empty if it has been sent, or none was asked for."""
        if self.state is not DrainState.ASKED:
            return b""
        self.state = DrainState.REFUSING
        return frames.goaway(last_stream, ErrorCode.NO_ERROR)
