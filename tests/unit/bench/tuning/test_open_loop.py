"""The client that does not wait for answers, against a server that is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.tuning import OpenLoop
from tests.contract.servers.ports import HOST

MS = 1_000_000
SLOW_S = 0.05
REQUEST = b"POST /%s HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"


class Slow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(SLOW_S)
        self.send_response(503 if self.path == "/busy" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer((HOST, 0), Slow)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_requests_are_sent_when_they_are_due_and_not_after_earlier_answers(port: int) -> None:
    loop = OpenLoop(port, REQUEST % b"a", [0, 1 * MS, 2 * MS, 200 * MS])
    begin = time.monotonic()
    loop.run()
    assert all(latency >= SLOW_S * 1e9 * 0.9 for latency in loop.latencies)
    # One after the other they would have taken four times as long, and the last one is sent on a free connection.
    assert time.monotonic() - begin >= 0.2


@pytest.mark.slow
def test_an_answer_that_is_no_success_has_no_latency(port: int) -> None:
    loop = OpenLoop(port, REQUEST % b"busy", [0, 1 * MS])
    loop.run()
    assert loop.latencies == [-1, -1]
