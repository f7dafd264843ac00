"""Attacks on the gRPC port: each ends in a GOAWAY, other clients are served meanwhile, and the log has no traceback.

Source: docs/spec/attacks.md section 1; tests/unit/app/worker/http2/test_attacks.py has all of them.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.contract.grpc.grpc_requests import LIMIT_S, simple_message, stub_of
from tests.contract.grpc.raw_connection import raw_connection
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.needed import program
from tests.unit.app.worker.http2.raw_client import REQUEST_BLOCK, headers_frame
from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import CONTINUATION, GOAWAY, PING, Http2Code, frame

pytestmark = pytest.mark.slow

FRAMES = 20_000
IDS = range(1, 2 * FRAMES, 2)


@contextmanager
def served_meanwhile(server: ServerProcess) -> Iterator[None]:
    """Another client is answered all the time."""
    failed: list[grpc.RpcError] = []
    answered = 0
    stop = threading.Event()

    def ask() -> None:
        nonlocal answered
        try:
            with stub_of(server) as stub:
                while not stop.is_set() or not answered:
                    stub.ModelInfer(simple_message(), timeout=LIMIT_S)
                    answered += 1
        except grpc.RpcError as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()
    assert not failed
    assert answered
    assert "Traceback" not in server.log_text()


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [headers_frame(id) + frames.rst_stream(id, Http2Code.CANCEL) for id in IDS], id="rapid reset CVE-2023-44487"
        ),
        pytest.param(
            [headers_frame(1, REQUEST_BLOCK, 0), *[frame(CONTINUATION, 0, 1, b"\0\1a\1b")] * FRAMES],
            id="CONTINUATION flood CVE-2024-27316",
        ),
        pytest.param([frame(PING, 0, 0, bytes(8))] * FRAMES, id="PING flood"),
        pytest.param([headers_frame(1, b"\x82" * 16000)], id="HPACK bomb"),
    ],
)
def test_attack_ends_only_its_own_connection(server: ServerProcess, parts: list[bytes]):
    with served_meanwhile(server), raw_connection(server) as attacker:
        with contextlib.suppress(ConnectionError):  # the server may have closed it
            attacker.send(*parts)
        _, _, content = attacker.next(GOAWAY)
        assert int.from_bytes(content[4:8], "big") == Http2Code.ENHANCE_YOUR_CALM


def test_half_open_connections_do_not_block_other_clients(server: ServerProcess):
    with contextlib.ExitStack() as opened, served_meanwhile(server):
        for sent in (b"", frames.PREFACE[:10], frames.PREFACE):
            for _ in range(50):
                sock = opened.enter_context(socket.create_connection((HOST, server.grpc_port)))
                sock.sendall(sent)


def test_h2spec_passes(server: ServerProcess):
    """The conformance suite for HTTP/2, whose checks http2/test_rules.py has as raw frames, too."""
    h2spec = program("h2spec", "https://github.com/summerwind/h2spec")
    path = "/inference.GRPCInferenceService/ModelInfer"
    command = [h2spec, "-h", HOST, "-p", str(server.grpc_port), "-P", path, "-o", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    assert "146 tests, 146 passed, 0 skipped, 0 failed" in ran.stdout, ran.stdout + ran.stderr
    assert "Traceback" not in server.log_text()
