"""A reply: status, headers and the parts of a body, which are sent one after the other without joining them.

Views return replies; only `send` turns one into a WSGI response.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import orjson

from core.inference.tensors import Buffer

Environ = dict[str, Any]
Headers = list[tuple[str, str]]

JSON = "application/json"
TEXT = "text/plain"

# Our worker passes the body as one buffer under this key and accepts any buffers; other servers accept only `bytes`.
BODY_KEY = "trident.body"
# Our worker passes the received headers as pairs of name and value: WSGI keeps neither the case of a name nor its
# underscores.
RECEIVED_HEADERS_KEY = "trident.headers"
# Our worker passes a function that returns true when the client has disconnected.
CLIENT_GONE_KEY = "trident.client_gone"

STATUS_LINES: dict[int, str] = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class Reply:
    """`headers` are complete, Content-Length included. A memoryview in `body` is one-dimensional and of bytes."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: list[Buffer]) -> None:
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


def plain_parts(reply: Reply) -> list[bytes]:
    """The body as WSGI has it, as `bytes`; copies every other kind of buffer."""
    return [part if type(part) is bytes else bytes(part) for part in reply.body]


def send(reply: Reply, environ: Environ, start_response: Any) -> Iterable[Buffer]:
    """Start the response and return its body: as buffers for our worker, which sends them with one `sendmsg`."""
    start_response(STATUS_LINES[reply.status], reply.headers)
    return reply.body if BODY_KEY in environ else plain_parts(reply)
