"""A reply: status, headers and the parts of a body, which are sent one after the other without joining them.

The parts of a stream are made while it is sent, each of them when the client has taken those before.

Views return replies; only `send` turns one into a WSGI response.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final, Protocol

import orjson

from trident.core.inference.tensors import Buffer

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def request_target(environ: Environ) -> str:
    """The request target (RAW_URI) if the server passes it, else the decoded path. Latin-1 text, as WSGI has it."""
    target: str = environ.get("RAW_URI") or environ["PATH_INFO"]
    return target


def path_of(target: str) -> str:
    """The path in a request target as text; bytes that are not UTF-8 become replacement characters."""
    path = target.partition("?")[0]
    if not path.startswith("/"):
        path = _SCHEME.sub("", path, count=1) or "/"
    if path.isascii():
        return path
    return path.encode("latin-1", "replace").decode("utf-8", "replace")


def request_path(environ: Environ) -> str:
    return path_of(request_target(environ))


# WSGI gives these two no prefix.
_WITHOUT_PREFIX = {"CONTENT_TYPE", "CONTENT_LENGTH"}


def header_of(environ: Environ, name: str) -> str | None:
    """The value of the header `name`, ignoring case, as Latin-1 text; None without the header."""
    received: list[tuple[str, str]] | None = environ.get(RECEIVED_HEADERS_KEY)
    if received is not None and "_" in name:
        # WSGI's keys do not distinguish an underscore from a hyphen.
        return next((value for given, value in received if given.lower() == name.lower()), None)
    key = name.upper().replace("-", "_")
    value: str | None = environ.get(key if key in _WITHOUT_PREFIX else f"HTTP_{key}")
    return value


Environ = dict[str, Any]
Headers = list[tuple[str, str]]

JSON: Final = "application/json"
TEXT: Final = "text/plain"

# Our worker passes the body as one buffer under this key and accepts any buffers; other servers accept only `bytes`.
BODY_KEY: Final = "trident.body"
# Our worker passes the received headers as pairs of name and value: WSGI keeps neither the case of a name nor its
# underscores.
RECEIVED_HEADERS_KEY: Final = "trident.headers"
# Our worker passes a function that returns true when the client has disconnected.
CLIENT_GONE_KEY: Final = "trident.client_gone"
# True if the error of a v2 request is that of its execution, or of the form of the answer.
EXECUTED_KEY: Final = "trident.executed"
# Our worker passes when it had all bytes of the request, in monotonic nanoseconds.
ARRIVED_KEY: Final = "trident.arrived_ns"

STATUS_LINES: Final[dict[int, str]] = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class ClosableParts(Protocol):
    """A generator or the like, which can be closed even before its first part. Each part is sent at once; `close` is
    called after the last one, or when the client has gone."""

    def __iter__(self) -> Iterator[Buffer]: ...

    def __next__(self) -> Buffer: ...

    def close(self) -> None: ...


class Reply:
    """`headers` are complete, Content-Length included unless the body is a stream. A memoryview in `body` is
    one-dimensional and of bytes.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: list[Buffer] | ClosableParts) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def text_reply(status: int, body: bytes, mime: str, extra: Iterable[tuple[str, str]] = ()) -> Reply:
    """A reply whose whole body is `body`; an empty one has a content type as well, as in Triton."""
    headers = [("Content-Type", mime), ("Content-Length", str(len(body))), *extra]
    return Reply(status, headers, [body] if body else [])


def json_reply(document: object, status: int = 200) -> Reply:
    return text_reply(status, orjson.dumps(document), JSON)


def empty_reply(mime: str, status: int = 200) -> Reply:
    return text_reply(status, b"", mime)


def body_size(reply: Reply) -> int:
    """The bytes of the body; 0 for a stream."""
    return sum(map(len, reply.body)) if isinstance(reply.body, list) else 0


def plain_parts(reply: Reply) -> list[bytes] | _PlainParts:
    """The body as `bytes`, as WSGI requires; copies every other kind of buffer."""
    body = reply.body
    return [_plain(part) for part in body] if isinstance(body, list) else _PlainParts(body)


class _PlainParts:
    def __init__(self, parts: ClosableParts) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return _plain(next(self._parts))

    def close(self) -> None:
        self._parts.close()


def _plain(part: Buffer) -> bytes:
    return part if type(part) is bytes else bytes(part)


def send(reply: Reply, environ: Environ, start_response: Any) -> Iterable[Buffer]:
    """Start the response and return its body: as buffers for our worker, which sends a list with one `sendmsg`."""
    start_response(STATUS_LINES[reply.status], reply.headers)
    if BODY_KEY not in environ:
        return plain_parts(reply)
    if not isinstance(reply.body, list):
        # The request's body may lie in shared memory, and a stream may last.
        for key in (BODY_KEY, "wsgi.input"):
            environ.pop(key, None)
    return reply.body
