"""Response heads: checked and rendered once for equal headers.

Source: PEP 3333; RFC 9110 sections 6.4.1 and 8.6; RFC 9112 section 6.
"""

from __future__ import annotations

from typing import Final

from core.memo import Memo

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade"}
)
_KNOWN_HEADERS: Final = 16

Headers = list[tuple[str, str]]


class ResponseHead:
    """The status line and headers of an application, rendered except for framing, connection and date.

    `declared` is the application's Content-Length, or None. `omits_body` is true for the statuses without a body.
    """

    __slots__ = ("closes", "declared", "omits_body", "start")

    def __init__(self, status: str, headers: Headers) -> None:
        """Raises ValueError for an invalid status or header."""
        if not status[:3].isdecimal() or status[3:4] not in (" ", ""):
            raise ValueError(f"invalid response status {status!r}")
        self.omits_body = status.startswith(("1", "204", "304"))
        self.declared: int | None = None
        self.closes = False
        lines = [f"HTTP/1.1 {status}\r\n"]
        for name, value in headers:
            lower = name.lower()
            if lower in _HOP_BY_HOP:
                self.closes = self.closes or (lower == "connection" and value.lower() == "close")
                continue
            if lower == "content-length":
                self.declared = int(value)
                if status.startswith(("1", "204")):
                    continue
            lines.append(f"{name}: {value}\r\n")
        self.start = "".join(lines).encode("latin-1")
        # One count for all lines: a line break inside a value would let a client forge a header.
        if self.start.count(b"\n") != len(lines) or self.start.count(b"\r") != len(lines):
            raise ValueError("a response header contains a line break")


class ResponseHeads:
    """Remembers the latest heads, because applications repeat themselves. Hub thread only."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Memo[tuple[object, ...], ResponseHead] = Memo(512)

    def head_for(self, status: str, headers: Headers) -> ResponseHead:
        """The head of this status and these headers. Raises ValueError as `ResponseHead` does."""
        key = (status, *headers)
        head = self._known.get(key)
        if head is None:
            head = ResponseHead(status, headers)
            if len(headers) <= _KNOWN_HEADERS and len(head.start) <= 1024:
                self._known[key] = head
        return head
