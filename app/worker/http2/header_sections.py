"""Header sections on the wire: in one frame, or in many."""

from __future__ import annotations

from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault
from app.worker.http2.frames import END_HEADERS, END_STREAM, LARGEST_WINDOW, PADDED, PRIORITIZED
from app.worker.http2.limits import Http2Limits


class HeaderSections:
    """Puts the block of a section together. `stream` has one that is unfinished; 0: none has. `ends` is not zero if it
    ends its request.

    Source: RFC 9113 sections 6.2 and 6.10, and 10.5.1 for the limits.
    """

    __slots__ = ("_limits", "_parts", "_size", "ends", "stream")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._parts: list[bytes] = []
        self._size = 0
        self.stream = self.ends = 0

    def begin(self, stream: int, flags: int, content: bytes) -> bytes | None:
        """Take a HEADERS frame: the whole block, or None if CONTINUATION follows. Raises ConnectionFault."""
        if flags & (PADDED | PRIORITIZED):
            content = _unpadded(stream, flags, content)
        if flags & END_HEADERS:
            return content
        if not stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client must not begin stream 0")
        self.stream, self.ends = stream, flags & END_STREAM
        self._add(content)
        return None

    def go_on(self, flags: int, content: bytes) -> bytes | None:
        """Take a CONTINUATION frame. As `begin`."""
        if not self.stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION must follow an unfinished header section")
        self._add(content)
        if not flags & END_HEADERS:
            return None
        block = b"".join(self._parts)
        self._parts, self._size, self.stream = [], 0, 0
        return block

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if len(self._parts) > self._limits.header_frames or self._size > self._limits.header_list:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "the header section has too many bytes or frames")


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
        check_dependency(id, content[start:])
        start += 5
    if start > end:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding exceeds the frame")
    return content[start:end]


def check_dependency(id: int, priority: bytes) -> None:
    """The one rule of priorities that counts; the rest of them is ignored. Source: RFC 7540 section 5.3.1."""
    if int.from_bytes(priority[:4], "big") & LARGEST_WINDOW == id:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {id} depends on itself")
