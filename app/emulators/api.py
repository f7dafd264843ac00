"""A platform's API on a port of this machine: the server and connection that all platforms' APIs share.

Signatures are not checked. Only this machine can connect.
"""

from __future__ import annotations

import socketserver
import sys
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from trident.app.emulators.container import HOST
from trident.core.errors import ConfigInvalid

_PIECE = 1 << 16
_IDLE_S = 120.0
# The server notices within this time that it must end.
_POLL_S = 0.05
# Bytes. A body that is too large is received up to this size, so that the caller reads the refusal.
_DRAINED_AT_MOST = 1 << 30


class ApiServer:
    """Serves `connection` on `port`, 0 for any free one, with a thread for each connection.

    The port is bound from construction until `close`. A context manager for one use: it accepts callers inside.
    Subclasses hold the state that their connections need.
    """

    def __init__(self, port: int, connection: type[ApiConnection], name: str) -> None:
        """Raises ConfigInvalid for a port that is in use or that needs privileges."""
        self._lock = threading.Lock()
        self._calls = 0
        self._server = Listener((HOST, port), connection, self)
        try:
            self._server.server_bind()
        except OSError as error:
            self.close()
            raise _cannot_listen(port, error) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=[_POLL_S], name=name, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    @property
    def calls(self) -> int:
        with self._lock:
            return self._calls

    def count(self) -> None:
        with self._lock:
            self._calls += 1

    def __enter__(self) -> Self:
        try:
            self._server.server_activate()
        except OSError as error:
            raise _cannot_listen(self._server.server_port, error) from error
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Release the port. A second call does nothing."""
        self._server.server_close()


def _cannot_listen(port: int, error: OSError) -> ConfigInvalid:
    return ConfigInvalid(
        f"cannot listen at {HOST}:{port}: {error.strerror}",
        hint="name another port with --port, or none, which finds a free one",
    )


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], connection: type[ApiConnection], api: ApiServer) -> None:
        self.api = api
        super().__init__(address, connection, bind_and_activate=False)

    def server_bind(self) -> None:
        """Bind without HTTPServer's lookup of the machine's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore callers that disconnect."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class ApiConnection(BaseHTTPRequestHandler):
    """One connection of a caller. Subclasses have a `do_` method for each HTTP method, and raise their own errors."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: Listener

    @abstractmethod
    def refusal(self, text: str) -> Exception:
        """The error that `body_length` raises for a request whose body cannot be received."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: calls are counted, and the container has its own log."""

    def body_length(self) -> int:
        """The length of the request's body in bytes. Raises `refusal` if the request does not give it."""
        text = self.headers.get("Content-Length", "")
        if text.isascii() and text.isdigit() and len(text) <= len(str(2**63)):
            return int(text)
        self.close_connection = True
        raise self.refusal("the request must say the length of its body")

    def read_body(self, length: int) -> bytes:
        """Receive `length` bytes of the request's body. Raises ConnectionResetError if the caller sends fewer."""
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError("the caller disconnected in the middle of its body")
        return body

    def drain(self, length: int) -> None:
        """Receive and drop a body."""
        if length > _DRAINED_AT_MOST:
            self.close_connection = True
            return
        while length > 0:
            piece = self.rfile.read(min(length, _PIECE))
            if not piece:
                break
            length -= len(piece)

    def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_head(status, {**headers, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def reply_in_chunks(self, status: int, headers: Mapping[str, str], chunks: Iterable[bytes]) -> None:
        """Send the answer chunk by chunk. If `chunks` raises, the caller never receives the end of the answer."""
        self.send_head(status, {**headers, "Transfer-Encoding": "chunked"})
        for chunk in chunks:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
