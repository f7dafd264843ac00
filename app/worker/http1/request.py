"""Parses requests: their heads, and chunked bodies. Only this module decides how a request is framed.

Equal heads are parsed once.

Whatever two servers in a row could read in two ways is refused, so that no request hides in the body of another.
Source: RFC 9112 sections 2 to 7; RFC 9110 sections 5 and 10.1.1; docs/spec/http.md section 7 for the limits.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from trident.core.http.body import MAX_LENGTH, body_too_large
from trident.core.http.reply import RECEIVED_HEADERS_KEY
from trident.core.memo import Memo

_CONTENT_LENGTH_RANGE = "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {}"
TOO_MANY_CHUNKS = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
PLAIN_TEXT = "this port has TLS: begin the address with https://"
CROWDED_OUT = "too many large bodies are being received: they have more than {} bytes together; send fewer at once"
NO_MEMORY = "not enough memory to receive a request body of {} bytes"

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class BadHttp(Exception):
    """The request is answered with `status` and `{"error": message}`, and then the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @classmethod
    def of(cls, status: int, fault: str) -> BadHttp:
        """The refusal of a request that is not well-formed: its message begins with the status in words."""
        return cls(status, f"{_REASONS[status]}: {fault}")

    def response(self) -> bytes:
        body = json.dumps({"error": self.message}, separators=(",", ":")).encode()
        head = (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\n"
            "Content-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body


HEAD_END: Final = b"\r\n\r\n"
MAX_HEAD_SIZE: Final = 65536
_KNOWN_HEAD_SIZE: Final = 2048
# Of a name or a value in an error.
_SHOWN: Final = 100
# In the versions after 1.1 that have its major number, messages have the same form.
_REQUEST_LINE: Final = re.compile(rb"([A-Z0-9!$%&'*+.^_`|~-]{3,20}) ([\x21-\x7e]+) HTTP/1\.([0-9])")
_BEGUN_LINE: Final = re.compile(rb"[A-Z0-9!$%&'*+.^_`|~-]{0,20}(?: (?:[\x21-\x7e]+(?: [HTP/0-9.]*)?)?)?")
# A path; or an address and its path, as proxies get them; or `*`. What follows `#` has no meaning for a server.
_TARGET: Final = re.compile(rb"(?:(?=/)|[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+)(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?|(\*)")
_FIELD: Final = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_LENGTH: Final = re.compile("[0-9]{1,4000}")
_CODINGS: Final = frozenset({"chunked", "compress", "deflate", "gzip", "identity"})
_WITHOUT_PREFIX: Final = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
# A second one would leave open which of them counts.
_SINGLE: Final = frozenset({"HTTP_HOST", "HTTP_TRANSFER_ENCODING", "CONTENT_TYPE", "CONTENT_LENGTH"})


class HttpHead:
    """A request without its body.

    `environ` is a template, of which each request gets a copy. It contains every key that a request sets, so that the
    copy does not grow. `length` is the length of the body in bytes, 0 for a chunked one. A head that `is_plain` is
    followed by `length` bytes; otherwise the body is chunked, the client waits for 100 Continue, or it asks for a
    WebSocket.
    """

    __slots__ = (
        "environ",
        "expects_continue",
        "is_chunked",
        "is_head_request",
        "is_plain",
        "keep_alive",
        "length",
        "minor_version",
        "upgrades",
    )

    def __init__(self, environ: dict[str, Any], minor_version: int) -> None:
        """Raises BadHttp for a body whose length is ambiguous, and for an expectation that is unknown."""
        self.environ = environ
        self.minor_version = minor_version
        self.is_head_request = environ["REQUEST_METHOD"] == "HEAD"
        options = [option.strip(" \t") for option in environ.get("HTTP_CONNECTION", "").lower().split(",")]
        self.keep_alive = "close" not in options and (minor_version > 0 or "keep-alive" in options)
        expected = environ.get("HTTP_EXPECT")
        if expected is not None and expected.lower() != "100-continue":
            raise BadHttp.of(417, f"Expect: {expected[:_SHOWN]!r} is not known, only 100-continue")
        self.expects_continue = expected is not None and minor_version > 0
        self.is_chunked = self._is_chunked()
        self.length = int(environ.get("CONTENT_LENGTH", "0"))
        # Any other protocol is not known, and the request is answered as one of HTTP/1.1 (RFC 9110 section 7.8).
        protocols = [each.strip(" \t") for each in environ.get("HTTP_UPGRADE", "").lower().split(",")]
        has_body = self.is_chunked or self.length > 0
        self.upgrades = "websocket" in protocols and environ["REQUEST_METHOD"] == "GET" and not has_body
        self.is_plain = not (self.is_chunked or self.expects_continue or self.upgrades)
        if self.is_chunked:
            environ["CONTENT_LENGTH"] = ""

    def _is_chunked(self) -> bool:
        coding: str | None = self.environ.get("HTTP_TRANSFER_ENCODING")
        if coding is None:
            return False
        if "CONTENT_LENGTH" in self.environ:
            raise BadHttp.of(400, "a request has either Content-Length or Transfer-Encoding, not both")
        if not self.minor_version:
            raise BadHttp.of(400, "HTTP/1.0 has no Transfer-Encoding")
        if coding.lower() == "chunked":
            return True
        is_known = {each.strip(" \t") for each in coding.lower().split(",")} <= _CODINGS
        raise BadHttp.of(400 if is_known else 501, f"Transfer-Encoding is not 'chunked' but {coding[:_SHOWN]!r}")


class RequestHeadParser:
    """Parses the heads of one listener.

    `known` remembers the latest heads by their bytes, because clients repeat themselves.
    """

    def __init__(self, base_environ: dict[str, Any], *, max_line: int, max_fields: int, max_field: int) -> None:
        """`max_line` and `max_field` are bytes of the request line and of each header field with its line break."""
        self._base_environ = base_environ
        self._max_line = max_line
        self._max_fields = max_fields
        self._max_field = max_field
        self.known: Memo[bytes, HttpHead] = Memo(512)

    def parse(self, head: bytes) -> HttpHead:
        """The request of `head`, which ends with its empty line. Raises BadHttp."""
        lines = self._lines(head[:-4])
        request = _REQUEST_LINE.fullmatch(lines[0])
        if request is None:
            raise _not_a_request(lines[0])
        environ = self._base_environ.copy()
        method, raw = request[1], request[2]
        if method == b"CONNECT":
            raise BadHttp.of(501, "CONNECT is for proxies")
        target = _TARGET.fullmatch(raw)
        if target is None or (target[3] is not None and method != b"OPTIONS"):
            raise BadHttp.of(400, f"the target of the request is neither a path nor a URL but {_shown(raw)}")
        path = target[1] or target[3] or b"/"
        environ["REQUEST_METHOD"] = method.decode()
        environ["RAW_URI"] = raw.decode()
        environ["PATH_INFO"] = (unquote_to_bytes(path) if b"%" in path else path).decode("latin-1")
        environ["QUERY_STRING"] = (target[2] or b"").decode()
        environ["SERVER_PROTOCOL"] = "HTTP/1." + request[3].decode()
        _fill_fields(environ, lines)
        found = HttpHead(environ, int(request[3]))
        if found.length > MAX_LENGTH:
            raise BadHttp(400, _CONTENT_LENGTH_RANGE.format(found.length))
        if len(head) <= _KNOWN_HEAD_SIZE:
            self.known[head] = found
        return found

    def check_part(self, part: bytes) -> None:
        """Raise BadHttp if no bytes behind `part` can complete it to a head."""
        lines = self._lines(part.removesuffix(b"\r"))
        if not (_REQUEST_LINE if len(lines) > 1 else _BEGUN_LINE).fullmatch(lines[0]):
            raise _not_a_request(lines[0])

    def _lines(self, part: bytes) -> list[bytes]:
        """The lines of a head or of its first part. Raises BadHttp if they exceed a limit or end with LF alone."""
        if len(part) > MAX_HEAD_SIZE:
            raise BadHttp.of(431, f"the request head exceeds the maximum of {MAX_HEAD_SIZE} bytes")
        lines = part.removeprefix(b"\r\n").split(b"\r\n")  # one empty line before a request is allowed
        if len(lines[0]) > self._max_line:
            raise BadHttp.of(414, f"the request line exceeds the maximum of {self._max_line} bytes")
        if len(lines) - 1 - (not lines[-1]) > self._max_fields:
            raise BadHttp.of(431, f"the request has more than {self._max_fields} header fields")
        for line in lines:
            if b"\n" in line:
                raise BadHttp.of(400, f"a line ends with LF alone, not with CR LF: {_shown(line)}")
            if len(line) + 2 > self._max_field and line is not lines[0]:
                raise BadHttp.of(431, f"a header field exceeds the maximum of {self._max_field} bytes: {_shown(line)}")
        return lines


def _not_a_request(line: bytes) -> BadHttp:
    return BadHttp.of(400, f"the request line is not 'METHOD /path HTTP/1.1' but {_shown(line)}")


def _shown(part: bytes) -> str:
    return repr(part[:_SHOWN].decode("latin-1"))


def _fill_fields(environ: dict[str, Any], lines: list[bytes]) -> None:
    received: list[tuple[str, str]] = []
    for line in lines[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadHttp.of(400, f"a header field is not 'Name: value' but {_shown(line)}")
        name = field[1].decode()
        value = field[2].decode("latin-1").rstrip(" \t")
        received.append((name, value))
        if "_" in name:
            continue  # its environ key would be that of the name with hyphens, which a proxy may have set or checked
        key = name.upper().replace("-", "_")
        if key not in _WITHOUT_PREFIX:
            key = "HTTP_" + key
        elif key == "CONTENT_LENGTH" and not _LENGTH.fullmatch(value):
            raise BadHttp.of(400, f"Content-Length is not a number but {value[:_SHOWN]!r}")
        if key in environ:
            if key in _SINGLE:
                raise BadHttp.of(400, f"the header field {name!r} is there twice")
            value = f"{environ[key]},{value}"
        environ[key] = value
    environ[RECEIVED_HEADERS_KEY] = received


# --- chunked bodies, collected as their bytes arrive


MAX_CHUNKS: Final = 65536
_MAX_LINE: Final = 8190
_MAX_TRAILERS: Final = 100
_TOKEN: Final = rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_SIZE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED)
)
# Trailers are not read. These would contradict the head of the request.
_TRAILER: Final = re.compile(
    rb"(?!(?:host|content-length|transfer-encoding|trailer|authorization|te):)%b:[\t\x20-\x7e\x80-\xff]*" % _TOKEN,
    re.IGNORECASE,
)


class ChunkedBody:
    """Collects one body: `feed` takes the bytes of the connection, until it returns true.

    `content` is the body so far, `missing` the number of bytes that the current chunk lacks, `rest` the bytes fed
    beyond the body.
    """

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
        """Take `part`. Return whether the body is complete. Raise BadHttp if it is malformed or exceeds a limit."""
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
                self._begun = begun = part[at:]
                # A line that cannot become right is refused: the client may wait for an answer to it.
                if self._ends_chunk and not self.missing:
                    _check_end(begun.removesuffix(b"\r"))
                if b"\n" in begun:
                    raise BadHttp.of(400, "a line of a chunked body ends with LF alone, not with CR LF")
                if len(begun) > _MAX_LINE:
                    raise BadHttp.of(400, f"a line of a chunked body exceeds the maximum of {_MAX_LINE} bytes")
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
                self._trailers += 1
                if self._trailers > _MAX_TRAILERS or len(line) > _MAX_LINE:
                    raise BadHttp.of(431, "the trailers of a chunked body are too many or too long")
                if not _TRAILER.fullmatch(line):
                    raise BadHttp.of(400, f"a trailer is malformed or not allowed: {line[:40]!r}")

    def _begin_chunk(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None or len(line) > _MAX_LINE:
            raise BadHttp.of(400, f"the size of a chunk is not a hexadecimal number but {line[:40]!r}")
        self.missing = int(size[1], 16)
        if not self.missing:
            self._trailers = 0
            return
        self._ends_chunk = True
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise BadHttp(400, TOO_MANY_CHUNKS)
        if len(self.content) + self.missing > self._max_size:
            raise BadHttp(413, body_too_large(f"more than {self._max_size}", self._max_size).message)


def _check_end(line: bytes) -> None:
    if line:
        raise BadHttp.of(400, f"a chunk is longer than its size: {line[:40]!r} follows")
