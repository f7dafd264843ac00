"""Connections to the gRPC port: keepalive, age, slow and dying clients, idle ones."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.contract.grpc.grpc_requests import assert_simple, client_of, simple_inputs, simple_message, tensor
from tests.contract.grpc.raw_connection import RawConnection, raw_connection
from tests.contract.servers.processes import Held
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import resident_kb
from tests.contract.servers.simple_model import link_models
from tests.waiting import until
from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import Http2Code

pytestmark = pytest.mark.slow

LARGE = 16 << 20
UNFINISHED = 16 << 20
IDLE = 1000
RESETS = 1250
# On stream 1: the head of a DATA frame of 4 MiB, and that of a message of LARGE in it.
BEGUN_MESSAGE = (4 << 20).to_bytes(3, "big") + bytes([frames.DATA, 0, 0, 0, 0, 1, 0]) + LARGE.to_bytes(4, "big")
# KB of resident memory.
IDLE_KB = 12


@pytest.fixture(scope="module")
def server(
    http_workers: str, tmp_path_factory: pytest.TempPathFactory, shipped_models: Path
) -> Iterator[ServerProcess]:
    repository = link_models(tmp_path_factory.mktemp("models") / "models", "identity_fp32", "simple")
    with ServerProcess(
        repository,
        tmp_path_factory.mktemp("server") / "log",
        "--shutdown-grace-secs=0",
        "--grpc-http2-max-ping-strikes=3",
    ) as running:
        yield running


def assert_serves(server: ServerProcess) -> None:
    with client_of(server) as client:
        assert_simple(client.infer("simple", simple_inputs()))


def error_of(goaway: bytes) -> tuple[Http2Code, bytes]:
    return Http2Code(int.from_bytes(goaway[4:8], "big")), goaway[8:]


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "closed"])
def test_connections_closed_mid_message_release_everything(server: ServerProcess, resets: bool) -> None:
    """The memory for their messages, which front ends share with the engine, is free for others."""
    for _ in range(20):
        with raw_connection(server) as client:
            client.next(frames.SETTINGS)
            client.begin(1)
            client.send(BEGUN_MESSAGE, bytes(3 << 20))
            if resets:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert_serves(server)
    until(lambda: open_connections(server) == 0)


def test_unfinished_messages_on_many_connections_use_bounded_memory(http_workers: str, tmp_path: Path) -> None:
    """Their memory is bounded, and another client's large message is received meanwhile."""
    count, sent = 60, 3 << 20
    held = 2 * (UNFINISHED + LARGE)  # in two front ends
    repository = link_models(tmp_path / "models", "identity_fp32", "simple")
    options = ("--shutdown-grace-secs=0", f"--grpc-max-unfinished-size={UNFINISHED}")
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(repository, tmp_path / "log", *options))
        assert_serves(server)
        before = resident_kb(server.process)
        clients = [stack.enter_context(raw_connection(server)) for _ in range(count)]
        for client in clients:
            client.next(frames.SETTINGS)
            client.begin(1)
            client.send(BEGUN_MESSAGE, bytes(sent))
        values = np.arange(1 << 18, dtype=np.float32).reshape(1, -1)
        with client_of(server) as client:
            echoed = client.infer("identity_fp32", [tensor("INPUT0", values, "FP32")]).as_numpy("OUTPUT0")
        assert echoed.tobytes() == values.tobytes()
        pool = stack.enter_context(ThreadPoolExecutor(count))
        answers = [pool.submit(client.answer) for client in clients]
        stack.callback(end_all, clients)
        until(lambda: sum(each.done() for each in answers) >= count - held // sent)
        for fields, _ in (each.result() for each in answers if each.done()):
            assert fields[b"grpc-status"] == b"8"
            assert fields[b"grpc-message"].startswith(b"Too many large messages are being received")
        # With the memory that is kept for the next large messages. All of them together are 180 MB.
        assert resident_kb(server.process) - before < 5 * held // 2 >> 10
        assert_serves(server)


def end_all(clients: list[RawConnection]) -> None:
    """Have those that still wait for an answer wait no longer."""
    for client in clients:
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_RDWR)


def open_connections(server: ServerProcess) -> int:
    """Connections to the gRPC port that are established."""
    port = f":{server.grpc_port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


def test_ten_thousand_reset_calls_leak_nothing(server: ServerProcess) -> None:
    """More on each connection than it has places, half of them after the whole request, with answered calls between."""
    message = simple_message().SerializeToString()

    def reset_many() -> None:
        with raw_connection(server) as client:
            client.send(frames.window_update(0, 1 << 24))
            for stream in range(1, 3 * RESETS, 6):
                client.begin(stream)
                client.call(stream + 2, message)
                client.send(*(frames.rst_stream(id, Http2Code.CANCEL) for id in (stream, stream + 2)))
                client.call(stream + 4, message)
                while client.next(frames.DATA)[1] != stream + 4:
                    pass

    reset_many()
    before = Held.by(server)
    for _ in range(10_000 // RESETS):
        reset_many()
    until(lambda: Held.by(server).is_within(before, growth_mb=10), lambda: f"{before}, then {Held.by(server)}")
    assert "Traceback" not in server.log_text()
    assert_serves(server)


def test_idle_connections_use_little_memory(http_workers: str, server: ServerProcess) -> None:
    with ExitStack() as stack:
        connect(server, stack, 100)
        before = resident_kb(server.process)
        connect(server, stack, IDLE)
        grown = resident_kb(server.process) - before
        assert grown < IDLE * IDLE_KB, f"{grown / IDLE:.1f} KB each"
        assert_serves(server)


def connect(server: ServerProcess, stack: ExitStack, count: int) -> None:
    made: list[RawConnection] = [stack.enter_context(raw_connection(server)) for _ in range(count)]
    for client in made:
        client.next(frames.SETTINGS)


def test_connection_age_limit_lets_calls_finish(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    options = ["--shutdown-grace-secs=0", "--grpc-max-connection-age=1000", "--grpc-max-connection-age-grace=5000"]
    with (
        ServerProcess(shipped_models, tmp_path / "log", *options) as aging,
        client_of(aging) as client,
        raw_connection(aging) as raw,
    ):
        seen: list[bytes] = []
        while not seen:
            assert_simple(client.infer("simple", simple_inputs()))
            if has_input(raw.socket):
                kind, _, _, content = raw.frame()
                seen += [content] if kind == frames.GOAWAY else []
        assert error_of(seen[0])[0] is Http2Code.NO_ERROR
        raw.call(1, simple_message().SerializeToString())
        assert raw.next(frames.DATA)[1] == 1
        assert raw.ends()
        for _ in range(100):
            assert_simple(client.infer("simple", simple_inputs()))


def has_input(sock: socket.socket) -> bool:
    sock.settimeout(0.001)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        sock.settimeout(30)
