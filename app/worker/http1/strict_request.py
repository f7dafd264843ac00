"""Requests that are not plain: gunicorn's own parser reads them, and decides what is refused.

Source: gunicorn's `AsyncWorker.handle` and `http/body.py`; docs/spec/http.md section 7 for chunks.
"""

from __future__ import annotations

from typing import Any, Protocol

from gunicorn.http import errors, wsgi
from gunicorn.http.body import ChunkedReader
from gunicorn.http.message import Request
from gunicorn.http.unreader import SocketUnreader

from app.worker.client_gone import ClientGone
from app.worker.http1.refusal import BODY_TOO_LARGE, TOO_MANY_CHUNKS, Refusal
from app.worker.http1.request_head import RequestHead
from core.http.reply import RECEIVED_HEADERS_KEY

MAX_CHUNKS = 65536


class Source(Protocol):
    """The connection, which waits on the hub."""

    def recv(self, size: int) -> bytes:
        """At least one byte, or none at the end of the connection."""


class BoundedChunks(ChunkedReader):  # type: ignore[misc]
    """A chunked body with limits on the number of chunks and on their total size in bytes."""

    def __init__(self, request: Any, unreader: Any, max_size: int) -> None:
        super().__init__(request, unreader)
        self._max_size = max_size
        self._size = 0
        self._chunks = 0

    def parse_chunk_size(self, unreader: Any, data: bytes | None = None) -> tuple[int, bytes | None]:
        size, rest = super().parse_chunk_size(unreader, data)
        if size:
            self._chunks += 1
            self._size += size
            if self._chunks > MAX_CHUNKS:
                raise Refusal(400, TOO_MANY_CHUNKS)
            if self._size > self._max_size:
                raise Refusal(400, BODY_TOO_LARGE.format(self._max_size))
        return size, rest

    def collect(self) -> bytearray:
        """The whole body."""
        body = bytearray()
        for piece in self.parser:
            body += piece
        return body


class StrictRequest:
    """One request, read from `source`.

    Raises Refusal for a request that gunicorn refuses, and ClientGone if the source ends early. The constructor reads
    the head. `head()` and `is_chunked` tell how the body is framed. `rest()` returns the bytes after the request that
    were taken from the source.
    """

    def __init__(self, source: Source, cfg: Any, peer: Any) -> None:
        self._unreader = SocketUnreader(source)
        try:
            self._request = Request(cfg, self._unreader, peer)
        except (errors.NoMoreData, StopIteration):
            raise ClientGone from None
        except errors.ParseException as error:
            raise Refusal.of(error) from error
        reader = self._request.body.reader
        self.is_chunked = isinstance(reader, ChunkedReader)
        self._length = 0 if self.is_chunked else reader.length
        # Its body and the body's reader refer to the request and to each other: without these cycles, a request goes
        # when it is answered, and not when the garbage collector runs.
        self._request.body = reader.parser = None
        self.expects_continue = self._request._expected_100_continue
        self._request._expected_100_continue = False  # the connection answers it after it has accepted the length
        self._cfg = cfg

    def head(self, sock: Any, peer: Any, address: Any) -> RequestHead:
        """The head, with gunicorn's environ. The length of a chunked body is 0 until it is read."""
        received = self._request.headers
        # `A_B` and `A-B` have the same key in the environ, which is for the latter only, as in plain heads.
        self._request.headers = [(name, value) for name, value in received if "_" not in name]
        try:
            _, environ = wsgi.create(self._request, sock, peer, address, self._cfg)
        except errors.ParseException as error:
            raise Refusal.of(error) from error
        environ[RECEIVED_HEADERS_KEY] = [(name.lower(), value) for name, value in received]
        environ["wsgi.multithread"] = True
        environ.setdefault("REMOTE_PORT", "")
        keep_alive = not self._request.should_close()
        return RequestHead(environ, self._length, keep_alive=keep_alive, minor_version=self._request.version[1])

    def chunked_body(self, max_size: int) -> bytes:
        """The whole body of a chunked request. Raises Refusal if it is malformed or exceeds a limit."""
        try:
            return bytes(BoundedChunks(self._request, self._unreader, max_size).collect())
        except errors.NoMoreData:
            raise ClientGone from None
        except errors.ParseException as error:
            raise Refusal.of(error) from error

    def rest(self) -> bytes:
        return bytes(self._unreader.take_buffered())
