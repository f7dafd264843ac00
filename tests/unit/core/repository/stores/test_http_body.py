"""Bodies from a real server, over one pool of connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3

from trident.core.repository.stores.http_body import body_pieces
from trident.core.repository.stores.object_store import TransientError

HOST = "127.0.0.1"
CONTENT = bytes(range(256)) * 4096


class BodyServer(ThreadingHTTPServer):
    """Answers `/NUMBER` with so many bytes of a body of CONTENT's length, `/chunked` with CONTENT in chunks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), Exchange)
        self.connections = 0


class Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BodyServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT))
            return
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        sent = int(self.path[1:])
        self.wfile.write(CONTENT[:sent])
        self.close_connection = sent < len(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[BodyServer]:
    with BodyServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def pool(server: BodyServer) -> Iterator[urllib3.HTTPConnectionPool]:
    with urllib3.HTTPConnectionPool(HOST, server.server_address[1], maxsize=1, retries=False) as pool:
        yield pool


def pieces(pool: urllib3.HTTPConnectionPool, path: str, length: int) -> Iterator[bytes]:
    with pool.request("GET", path, preload_content=False) as response:
        yield from body_pieces(response, length, "the object")


@pytest.mark.parametrize("path", [f"/{len(CONTENT)}", "/chunked"])
def test_whole_body_leaves_its_connection_for_the_next(
    pool: urllib3.HTTPConnectionPool, server: BodyServer, path: str
) -> None:
    for _ in range(3):
        assert b"".join(pieces(pool, path, len(CONTENT))) == CONTENT
    assert server.connections == 1


def test_body_that_ends_early_is_transient(pool: urllib3.HTTPConnectionPool) -> None:
    came: list[bytes] = []
    with pytest.raises(TransientError, match=r"^the object broke off 548576 bytes before its end: ProtocolError$"):
        came.extend(pieces(pool, "/500000", len(CONTENT)))
    assert b"".join(came) == CONTENT[:500_000]


@pytest.mark.parametrize("path", [f"/{len(CONTENT)}", "/chunked"])
def test_body_that_goes_on_is_refused_and_its_connection_is_not_used_again(
    pool: urllib3.HTTPConnectionPool, server: BodyServer, path: str
) -> None:
    came: list[bytes] = []
    with pytest.raises(TransientError, match=r"^the object has more than the 1000 bytes that were asked for$"):
        came.extend(pieces(pool, path, 1000))
    assert b"".join(came) == CONTENT[:1000]
    assert b"".join(pieces(pool, path, len(CONTENT))) == CONTENT
    assert server.connections == 2
