"""A reply: status, headers and the parts of a body, which are sent one after the other and never joined.

Views make replies; only `send` turns one into what WSGI wants.
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

# Our own worker hands the body over as one buffer under this key, and takes any buffers back; others want `bytes`.
BODY_KEY = "trident.body"
# And the headers as they came, pairs of name and value: of a name WSGI keeps neither the case nor the underscores.
RECEIVED_HEADERS_KEY = "trident.headers"
# And a function that says whether the client is known to have gone.
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
    """A reply whose whole body is `body`; without a body it still says what type it would have, as Triton does."""
    headers = [("Content-Type", mime), ("Content-Length", str(len(body))), *extra]
    return Reply(status, headers, [body] if body else [])


def json_reply(document: object, status: int = 200) -> Reply:
    return text_reply(status, orjson.dumps(document), JSON)


def empty_reply(mime: str, status: int = 200) -> Reply:
    return text_reply(status, b"", mime)


def plain_parts(reply: Reply) -> list[bytes]:
    """The body for a server that takes only `bytes`, as WSGI has it; costs a copy of every other kind of buffer."""
    return [part if type(part) is bytes else bytes(part) for part in reply.body]


def send(reply: Reply, environ: Environ, start_response: Any) -> Iterable[Buffer]:
    """Start the response and return its body, as buffers where our own worker sends them (one `sendmsg`)."""
    start_response(STATUS_LINES[reply.status], reply.headers)
    return reply.body if BODY_KEY in environ else plain_parts(reply)
