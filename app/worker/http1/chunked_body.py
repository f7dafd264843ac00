"""Chunked request bodies, collected as their bytes arrive.

Source: RFC 9112 section 7.1; docs/spec/http.md section 7 for the limits.
"""

from __future__ import annotations

import re
from typing import Final

from trident.app.worker.http1.request_head import BODY_TOO_LARGE, TOO_MANY_CHUNKS, Refusal

MAX_CHUNKS: Final = 65536
_MAX_LINE: Final = 8190
_MAX_TRAILERS: Final = 100
_TOKEN: Final = rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_SIZE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED)
)
# Nothing reads trailers. These would change what the head has said about the request.
_TRAILER: Final = re.compile(
    rb"(?!(?:host|content-length|transfer-encoding|trailer|authorization|te):)%b:[\t\x20-\x7e\x80-\xff]*" % _TOKEN,
    re.IGNORECASE,
)


class ChunkedBody:
    """Collects one body: `feed` takes the bytes of the connection, until it returns true.

    `content` is the body so far, `missing` the number of bytes that the current chunk lacks, `rest` what was fed and
    lies behind the body.
    """

    __slots__ = ("_begun", "_chunks", "_ends_chunk", "_max_size", "_trailers", "content", "missing", "rest")

    def __init__(self, max_size: int) -> None:
        self.content = bytearray()
        self.missing = 0
        self.rest = b""
        self._max_size = max_size
        self._chunks = 0
        self._begun = b""  # of a line
        self._ends_chunk = False  # the next line is the empty one behind a chunk
        self._trailers = -1  # those read; -1 before the last chunk

    def feed(self, part: bytes) -> bool:
        """Take `part`. Return whether the body is complete. Raise Refusal if it is malformed or exceeds a limit."""
        part = self._begun + part
        at = 0
        while True:
            if self.missing:
                piece = part[at : at + self.missing]
                self.content += piece
                self.missing -= len(piece)
                at += len(piece)
            end = part.find(b"\r\n", at)
            if self.missing or end < 0:
                self._begun = part[at:]
                self._check_begun()
                return False
            line = part[at:end]
            at = end + 2
            if self._ends_chunk:
                _check_end(line)
                self._ends_chunk = False
            elif self._trailers < 0:
                self._begin_chunk(line)
            elif not line:
                self.rest = part[at:]
                return True
            else:
                self._check_trailer(line)

    def _begin_chunk(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None or len(line) > _MAX_LINE:
            raise Refusal.of(400, f"the size of a chunk is not a hexadecimal number but {line[:40]!r}")
        self.missing = int(size[1], 16)
        if not self.missing:
            self._trailers = 0
            return
        self._ends_chunk = True
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise Refusal(400, TOO_MANY_CHUNKS)
        if len(self.content) + self.missing > self._max_size:
            raise Refusal(400, BODY_TOO_LARGE.format(self._max_size))

    def _check_begun(self) -> None:
        """Refuse a line that cannot become right: the client may wait for an answer to it."""
        if self._ends_chunk and not self.missing:
            _check_end(self._begun.removesuffix(b"\r"))
        if b"\n" in self._begun:
            raise Refusal.of(400, "a line of a chunked body ends with LF alone, not with CR LF")
        if len(self._begun) > _MAX_LINE:
            raise Refusal.of(400, f"a line of a chunked body exceeds the maximum of {_MAX_LINE} bytes")

    def _check_trailer(self, line: bytes) -> None:
        self._trailers += 1
        if self._trailers > _MAX_TRAILERS or len(line) > _MAX_LINE:
            raise Refusal.of(431, "the trailers of a chunked body are too many or too long")
        if not _TRAILER.fullmatch(line):
            raise Refusal.of(400, f"a trailer is malformed or not allowed: {line[:40]!r}")


def _check_end(line: bytes) -> None:
    if line:
        raise Refusal.of(400, f"a chunk is longer than its size: {line[:40]!r} follows")
