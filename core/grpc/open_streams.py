"""The calls that go on until their client ends them, and their end when the server stops."""

from __future__ import annotations

from typing import Final, Protocol

from core.errors import ServerStopping
from core.waiting.deadlines import Deadlines

# In this time a request on an open stream gets an error message, as from Triton. Then the stream ends as well:
# a client that only waits would hold up the stop until the server gives up.
_GRACE_S: Final = 2.0


class OpenStream(Protocol):
    """It must be hashable."""

    def leave(self) -> None:
        """The server goes: end, with an error, as soon as everything that the client has asked for is answered."""


class OpenStreams:
    """On the hub's thread."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._open: dict[OpenStream, None] = {}
        self._is_over = False

    def add(self, stream: OpenStream) -> None:
        self._open[stream] = None
        if self._is_over:
            self._deadlines.add(0.0, self)

    def remove(self, stream: OpenStream) -> None:
        self._open.pop(stream, None)

    def begin_exit(self) -> None:
        """The server stops: have all of them leave after a grace period."""
        self._deadlines.add(_GRACE_S, self)

    def expire(self) -> None:
        self._is_over = True
        for stream in list(self._open):
            stream.leave()


def stopping() -> ServerStopping:
    return ServerStopping("GRPC server is shutting down and has stopped accepting new requests.")
