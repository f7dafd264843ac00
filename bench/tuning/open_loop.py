"""A client that sends each request when it is due, whether or not earlier ones were answered."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from tests.contract.servers.ports import HOST

_S = 1_000_000_000
_MOST_CONNECTIONS = 512
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
# After the last request was due, and for the whole client.
_LAST_S = 20.0
_START_S = 0.3


class OpenLoop:
    """Sends `request`, whole HTTP requests, to `port`; on as many connections as there are requests on the way.

    `latencies` has the nanoseconds from when each request was due to its answer, in the order of `arrivals`; -1 for one
    that was not answered with 200 in time.
    """

    def __init__(self, port: int, request: bytes, arrivals: Sequence[int]) -> None:
        self._port = port
        self._request = request
        self._arrivals = arrivals
        # `select` waits with a precision of microseconds, `epoll` with that of milliseconds.
        self._selector = selectors.SelectSelector()
        self._free: list[socket.socket] = []
        self._asked: dict[socket.socket, tuple[int, bytearray]] = {}
        self.latencies = [-1] * len(arrivals)

    def run(self) -> None:
        """Blocks until all answers are there."""
        self._begin_ns = time.monotonic_ns() + int(_START_S * _S)
        following = 0
        until_ns = self._begin_ns + self._arrivals[-1] + int(_LAST_S * _S)
        while following < len(self._arrivals) or self._asked:
            now_ns = time.monotonic_ns()
            if now_ns > until_ns:
                break
            while following < len(self._arrivals) and self._begin_ns + self._arrivals[following] <= now_ns:
                self._send(following)
                following += 1
            wait_s = 0.05
            if following < len(self._arrivals):
                wait_s = min(wait_s, (self._begin_ns + self._arrivals[following] - time.monotonic_ns()) / _S)
            for key, _ in self._selector.select(max(0.0, wait_s)):
                self._receive(key.fileobj)  # type: ignore[arg-type]
        for sock in [*self._free, *self._asked]:
            sock.close()
        self._selector.close()

    def _send(self, index: int) -> None:
        if self._free:
            sock = self._free.pop()
        elif len(self._asked) < _MOST_CONNECTIONS:
            sock = socket.create_connection((HOST, self._port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ)
        else:
            return  # it counts as not answered
        self._asked[sock] = (index, bytearray())
        sock.sendall(self._request)

    def _receive(self, sock: socket.socket) -> None:
        part = sock.recv(65536)
        index, buffer = self._asked[sock]
        buffer += part
        end = buffer.find(_HEAD_END)
        if part and end < 0:
            return
        head = bytes(buffer[:end]).lower()
        length = int(head.partition(_LENGTH)[2].partition(b"\r\n")[0] or 0)
        if part and len(buffer) < end + len(_HEAD_END) + length:
            return
        del self._asked[sock]
        if head.startswith(b"http/1.1 200"):
            self.latencies[index] = time.monotonic_ns() - self._begin_ns - self._arrivals[index]
        if part:
            self._free.append(sock)
        else:
            self._selector.unregister(sock)
            sock.close()


def open_loop(port: int, path: str, body: bytes, arrivals: Sequence[int]) -> list[int]:
    """The latencies of requests for `path` that are due at `arrivals`, in nanoseconds, from a process of its own."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_run, args=(port, head.encode() + body, arrivals, sender), daemon=True)
    process.start()
    sender.close()
    latencies: list[int] = receiver.recv()
    process.join(_LAST_S)
    return latencies


def _run(port: int, request: bytes, arrivals: Sequence[int], results: Connection) -> None:
    loop = OpenLoop(port, request, arrivals)
    loop.run()
    results.send(loop.latencies)
