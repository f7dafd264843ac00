"""The worker over real sockets: answers, refusals, and clients that must not hold up others."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.contract.servers.probe_site import Client, Server, served
from tests.waiting import until

pytestmark = pytest.mark.slow

GET = b"GET /pid HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server that waits two seconds for the rest of a request, or for a client to read its response."""
    with served(request_timeout_s=2.0) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.port) as client:
        yield client


def post(path: str, body: bytes, headers: str = "") -> bytes:
    return f"POST /{path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chunked(path: str, *chunks: bytes) -> bytes:
    head = f"POST /{path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


# --- answers


@pytest.mark.parametrize("size", [1, 65535, 65536, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_body_of_any_size_is_complete(client: Client, size: int) -> None:
    body = os.urandom(size)
    assert client.ask(post("echo", body)).body == body
    assert client.ask(post("buffer", body) + GET).body == body
    assert client.reply().status == 200


@pytest.mark.parametrize("size", [100_000, 1 << 20, 3_000_000])
@pytest.mark.parametrize("offset", [0, 1, 63, 117])
def test_tensors_of_a_large_body_are_aligned(client: Client, size: int, offset: int) -> None:
    assert client.ask(post("alignment", bytes(size), f"X-Offset: {offset}\r\n")).body == b"0"


def test_stream_is_chunked_for_1_1_and_ends_with_the_connection_for_1_0(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"GET /stream HTTP/1.1\r\n\r\n").body == b"one,two,three"
        assert client.ask(b"GET /stream HTTP/1.0\r\n\r\n").body == b"one,two,three"


@pytest.mark.parametrize(("count", "size"), [(1, 20_000_000), (3000, 1), (3000, 3000)])
def test_response_of_many_or_large_buffers_is_complete(client: Client, count: int, size: int) -> None:
    expected = b"".join(bytes([index % 251]) * size for index in range(count))
    assert client.ask(f"GET /large?{count},{size} HTTP/1.1\r\n\r\n".encode()).body == expected


# --- refusals


@pytest.mark.parametrize("length", [2**31, 9_999_999_999, 99_999_999_999])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_length_beyond_32_bits_is_refused_with_tritons_text(client: Client, length: int, version: str) -> None:
    reply = client.ask(f"POST /echo HTTP/{version}\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
    text = f"Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {length}"
    assert (reply.status, json.loads(reply.body)) == (400, {"error": text})
    assert client.is_closed()


def test_announced_lengths_allocate_no_memory(server: Server) -> None:
    pid = int(server.get("pid"))
    before = resident_bytes(pid)
    with ExitStack() as stack:
        for _ in range(50):
            liar = stack.enter_context(Client(server.port))
            liar.send(b"POST /echo HTTP/1.1\r\nContent-Length: 2000000000\r\n\r\n")
        assert server.answers()
        assert resident_bytes(pid) - before < 20 << 20


# --- failures of the application


def test_response_that_is_too_short_ends_the_connection(client: Client) -> None:
    client.send(b"GET /short HTTP/1.1\r\n\r\n")
    assert client.rest().endswith(b"\r\n\r\nshort")


# --- clients that must not hold up others


def test_stalled_requests_time_out_without_delaying_others(impatient: Server) -> None:
    begun = (b"POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nonly", b"GET /pid HT", chunked("echo", b"one")[:-5])
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(impatient.port)) for _ in begun]
        for client, part in zip(clients, begun, strict=True):
            client.send(part)
        assert impatient.answers()
        for client in clients:
            assert client.reply().status == 408
            assert client.is_closed()


def test_client_that_does_not_read_is_disconnected(impatient: Server) -> None:
    with Client(impatient.port) as client:
        client.send(b"GET /large?1,50000000 HTTP/1.1\r\n\r\n")
        assert impatient.answers()
        until(lambda: len(open_files(impatient)) == base_files(impatient))
        assert len(ending(client)) < 50_000_000


def test_idle_connection_is_closed_after_keepalive() -> None:
    with served(keepalive_s=1.0) as server, Client(server.port) as client:
        assert client.ask(GET).status == 200
        assert client.is_closed()


def test_busy_pipelining_client_does_not_starve_another(server: Server) -> None:
    ended = threading.Event()

    def repeat(do: Callable[[], object]) -> None:
        while not ended.is_set():
            do()

    with Client(server.port) as busy, Client(server.port) as other, ThreadPoolExecutor(2) as pool:
        pool.submit(repeat, lambda: busy.send(GET * 1000))
        pool.submit(repeat, lambda: busy.socket.recv(1 << 20))
        try:
            for _ in range(100):
                assert other.ask(GET).status == 200
        finally:
            ended.set()
            busy.socket.shutdown(socket.SHUT_RDWR)


def ending(client: Client) -> bytes:
    """The bytes that were still in flight when the server dropped the connection."""
    try:
        return client.rest()
    except ConnectionResetError:
        return b""


def open_files(server: Server) -> list[str]:
    """The open sockets of the worker."""
    folder = f"/proc/{worker_pid(server)}/fd"
    return [name for name in os.listdir(folder) if "socket:" in link(f"{folder}/{name}")]


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def base_files(server: Server) -> int:
    return len(server.ports)


def worker_pid(server: Server) -> int:
    with open(f"/proc/{server.started.pid}/task/{server.started.pid}/children") as children:
        return int(children.read().split()[0])


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize()
