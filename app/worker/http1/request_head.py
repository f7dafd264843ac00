"""Request heads: plain ones are parsed once and remembered.

Source: RFC 9112 sections 2 to 6; gunicorn's `http/message.py` for what is refused.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import gunicorn_h1c

from app.worker.http1.refusal import check_length
from core.http.reply import RECEIVED_HEADERS_KEY
from core.memo import Memo

HEAD_END: Final = b"\r\n\r\n"
_TARGET: Final = re.compile(rb"/(?!/)[\x21\x22\x24-\x7e]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,10}")
_SINGLE: Final = frozenset({"HTTP_HOST", "CONTENT_TYPE", "CONTENT_LENGTH"})
_UNUSUAL: Final = frozenset({"HTTP_TRANSFER_ENCODING", "HTTP_EXPECT", "HTTP_UPGRADE"})
_KNOWN_HEAD_SIZE: Final = 2048


class RequestHead:
    """A request without its body.

    `environ` is a template, of which each request gets a copy. It contains every key that a request sets, so that the
    copy does not grow. `length` is the length of the body in bytes.
    """

    __slots__ = ("environ", "is_head_request", "keep_alive", "length", "minor_version")

    def __init__(self, environ: dict[str, Any], length: int, *, keep_alive: bool, minor_version: int = 1) -> None:
        self.environ = environ
        self.length = length
        self.keep_alive = keep_alive
        self.minor_version = minor_version
        self.is_head_request = environ["REQUEST_METHOD"] == "HEAD"


class RequestHeadParser:
    """Parses the plain heads of one listener; for all others `parse` returns None.

    A plain head has HTTP/1.1, an origin-form target, at most one Content-Length of up to ten digits, no
    Transfer-Encoding, Expect or Upgrade, and nothing that gunicorn's own parser would refuse. Other heads go to that
    parser. `known` remembers the latest heads by their bytes, because clients repeat themselves.
    """

    __slots__ = ("_base_environ", "_limits", "_max_body_size", "_set_aside", "known")

    def __init__(
        self, base_environ: dict[str, Any], limits: dict[str, int], set_aside: frozenset[str], max_body_size: int
    ) -> None:
        """`limits` are the keyword arguments of the C parser. A head with a `set_aside` environ key (a header in which
        a proxy gives the scheme) is not plain."""
        self._base_environ = base_environ
        self._limits = limits
        self._max_body_size = max_body_size
        self._set_aside = _UNUSUAL | set_aside
        self.known: Memo[bytes, RequestHead] = Memo(512)

    def parse(self, head: bytes) -> RequestHead | None:
        """The request of `head`, which ends with its empty line; None if it is not plain.

        Raises Refusal for a body that is too large.
        """
        try:
            # `parse_request_fast` takes half a microsecond less, but the classes of its errors are not public.
            request = gunicorn_h1c.parse_request(head, **self._limits)
        except (gunicorn_h1c.ParseError, gunicorn_h1c.IncompleteError):
            return None
        lines = len(request["headers"]) + 2
        if (
            request["consumed"] != len(head)
            or request["minor_version"] != 1
            or head.count(b"\n") != lines
            or head.count(b"\r\n") != lines
            or not _TARGET.fullmatch(request["path"])
            or not head.startswith(b"%b %b HTTP/1.1\r\n" % (request["method"], request["path"]))
            or request["method"] == b"CONNECT"
        ):
            return None
        environ = self._environ(request)
        if environ is None:
            return None
        length = int(environ.get("CONTENT_LENGTH", "0"))
        check_length(length, self._max_body_size)
        options = environ.get("HTTP_CONNECTION", "").lower().split(",")
        plain = RequestHead(environ, length, keep_alive="close" not in [option.strip(" \t") for option in options])
        if len(head) <= _KNOWN_HEAD_SIZE:
            self.known[head] = plain
        return plain

    def is_incomplete(self, part: bytes) -> bool:
        """Whether more bytes can complete this head. Raises the C parser's errors if they cannot."""
        fields = self._limits["limit_request_fields"]
        # For an incomplete head with too many fields the C parser reports a malformed head.
        if part.count(b"\n") > fields + 1:
            raise gunicorn_h1c.LimitRequestHeaders(f"more than {fields} header fields")
        try:
            gunicorn_h1c.parse_request(part, **self._limits)
        except gunicorn_h1c.IncompleteError:
            return True
        return False

    def _environ(self, request: dict[str, Any]) -> dict[str, Any] | None:
        environ = self._base_environ.copy()
        target = request["path"].decode("ascii")
        path, _, query = target.partition("?")
        environ["REQUEST_METHOD"] = request["method"].decode("ascii")
        environ["RAW_URI"] = target
        environ["PATH_INFO"] = unquote_to_bytes(path).decode("latin-1") if "%" in path else path
        environ["QUERY_STRING"] = query
        environ["SERVER_PROTOCOL"] = "HTTP/1.1"
        received: list[tuple[str, str]] = []
        for name, raw in request["headers"]:
            if not name:
                return None
            if b"_" in name:
                # Its environ key would be that of the name with hyphens, which a proxy may have set or checked.
                received.append((name.decode("ascii"), raw.decode("latin-1")))
                continue
            key = "HTTP_" + name.decode("ascii").upper().replace("-", "_")
            if key in ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"):
                key = key[5:]
            if key in self._set_aside or (key == "CONTENT_LENGTH" and not _LENGTH.fullmatch(raw)):
                return None
            value = raw.decode("latin-1")
            received.append((name.decode("ascii"), value))
            if key in environ:
                if key in _SINGLE:
                    return None
                value = f"{environ[key]},{value}"
            environ[key] = value
        environ[RECEIVED_HEADERS_KEY] = received
        return environ
