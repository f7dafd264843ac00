"""The states of a stream."""

from __future__ import annotations

from enum import Enum


class StreamState(Enum):
    """A client's stream as the server sees it. Source: RFC 9113 section 5.1, without those of server push.

        (idle) -> OPEN -> HALF_CLOSED -> CLOSED
                      `------------------^

    A stream that the server has ended before its client has is reset, so it is CLOSED as well.
    """

    OPEN = "both sides may send"
    HALF_CLOSED = "the client has sent everything"
    CLOSED = "nothing can be sent"
