"""A header block that comes in several frames."""

from __future__ import annotations

from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault
from app.worker.http2.limits import Http2Limits


class HeaderBlock:
    """The parts of a block whose END_HEADERS is still to come. `ends` is not zero if it ends its stream.

    Source: RFC 9113 section 6.10, and 10.5.1 for the limits.
    """

    __slots__ = ("_limits", "_parts", "_size", "ends", "stream")

    def __init__(self, stream: int, limits: Http2Limits, ends: int) -> None:
        self.stream = stream
        self.ends = ends
        self._limits = limits
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Raises ConnectionFault if the block exceeds the limits."""
        self._parts.append(part)
        self._size += len(part)
        if len(self._parts) > self._limits.header_frames or self._size > self._limits.header_list:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "the header section has too many bytes or frames")

    def whole(self) -> bytes:
        return b"".join(self._parts)
