"""Servers and front ends that end while clients call them over gRPC."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.grpc.grpc_requests import (
    Responses,
    address_of,
    assert_simple,
    client_of,
    simple_inputs,
    simple_message,
)
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow

CLIENTS = 4
IN_FLIGHT = 8
# Seconds between two rounds of a client, which otherwise takes the time in which servers start.
PAUSE_S = 0.01
STOPS = 2


class Load:
    """Clients that call the model `simple` again and again, each with several calls in flight on its own connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.answers = 0

    def run(self) -> None:
        """Raises the first error of a call."""
        with grpc.insecure_channel(f"{HOST}:{self._port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = simple_message()
            while not self._stop.is_set():
                calls = [stub.ModelInfer.future(request, timeout=60) for _ in range(IN_FLIGHT)]
                for call in calls:
                    assert call.result().model_name == "simple"
                    self.answers += 1
                self._stop.wait(PAUSE_S)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self.run) for _ in range(CLIENTS)]
            try:
                until(lambda: self.answers > CLIENTS or any(client.done() for client in clients))
                yield
            finally:
                self._stop.set()
            for client in clients:
                client.result()

    def wait_for_more(self) -> None:
        enough = self.answers + CLIENTS * IN_FLIGHT
        until(lambda: self.answers > enough)


@pytest.mark.shapes("front-ends")
def test_no_call_is_lost_when_servers_replace_each_other(
    http_workers: str, shipped_models: Path, tmp_path: Path
) -> None:
    """Two servers listen on one port, one of them is stopped, another one takes its place, and so on."""
    (port,) = free_ports(1)
    options = ["--shutdown-grace-secs=0", f"--grpc-port={port}", "--reuse-grpc-port=true"]
    load = Load(port)
    server = ServerProcess(shipped_models, tmp_path / "log0", *options).__enter__()
    try:
        with load.running():
            for number in range(1, STOPS + 1):
                following = ServerProcess(shipped_models, tmp_path / f"log{number}", *options).__enter__()
                load.wait_for_more()
                ending, server = server, following
                ending.__exit__(None, None, None)
                load.wait_for_more()
    finally:
        server.__exit__(None, None, None)


@pytest.mark.shapes("one-process", "front-ends")
def test_open_stream_ends_when_the_server_stops(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    with (
        ServerProcess(shipped_models, tmp_path / "log", "--shutdown-grace-secs=0") as server,
        client_of(server) as client,
        grpc.insecure_channel(address_of(server)) as channel,
    ):
        health = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
        assert next(health) == b"\x08\x01"
        responses = Responses()
        client.start_stream(responses.put)
        client.async_stream_infer("simple", simple_inputs())
        assert_simple(responses.next_result())
        server.process.send_signal(signal.SIGTERM)
        error = None
        while error is None:  # requests of open streams are answered until the port closes
            client.async_stream_infer("simple", simple_inputs())
            _, error = responses.next()
        assert "GRPC server is shutting down" in str(error)
        # The client only waits, and does not hold up the stop.
        _, error = responses.next()
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert next(health) == b"\x08\x02"
        assert health.code() is grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(60) == 0
