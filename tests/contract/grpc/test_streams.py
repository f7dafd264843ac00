"""Streams, slow calls, and how calls are counted and logged, in both shapes of the server.

Source: docs/spec/grpc.md sections 4 and 7.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_requests import (
    LIMIT_S,
    assert_simple,
    client_of,
    rpc_refusal,
    simple_inputs,
    simple_message,
    stub_of,
    tensor,
)
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    repository = link_models(folder / "models", "simple", "identity_fp32")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0", "--log-verbose=1") as running:
        yield running


def test_slow_reader_of_a_stream_delays_only_itself(server: ServerProcess) -> None:
    request = simple_message(model_name="identity_fp32")
    del request.inputs[:], request.raw_input_contents[:]
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 500_000])
    request.raw_input_contents.append(np.ones(500_000, np.float32).tobytes())
    sent: list[int] = []

    def requests() -> Iterator[Any]:
        for number in range(200):
            sent.append(number)
            yield request

    with stub_of(server) as stub:
        # grpc's own flow control: nothing more is read before the iterator is asked for it.
        call = stub.ModelStreamInfer(requests(), timeout=LIMIT_S)
        next(call)
        with client_of(server) as client:
            for seed in range(100):
                assert_simple(client.infer("simple", simple_inputs(seed)), seed)
        assert len(sent) < 200
        assert sum(1 for _ in call) == 199
        assert call.code() is grpc.StatusCode.OK


def test_slow_calls_do_not_hold_up_health_checks(server: ServerProcess) -> None:
    """Calls that wait for storage or for protobuf are under way all the time."""
    stop = threading.Event()

    def ask() -> None:
        with client_of(server) as client:
            while not stop.is_set():
                client.get_model_repository_index()
                client.get_model_config("simple")

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        with client_of(server) as client:
            for _ in range(50):
                assert client.is_server_live(client_timeout=LIMIT_S)
            large = client.infer("identity_fp32", [tensor("INPUT0", np.zeros((1, 400_000), np.float32), "FP32")])
            assert large.as_numpy("OUTPUT0").shape == (1, 400_000)
    finally:
        stop.set()
        for asker in askers:
            asker.join(LIMIT_S)


def test_calls_are_counted_and_logged(server: ServerProcess) -> None:
    def counted(method: str, status: str) -> float:
        page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
        wanted = f'trident_grpc_responses_total{{method="{method}",status="{status}"}} '
        return sum(float(line.removeprefix(wanted)) for line in page.splitlines() if line.startswith(wanted))

    # With front ends the connections go to all of them, and each page shows the sum.
    for _ in range(4):
        with stub_of(server) as stub:
            stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=LIMIT_S)
            rpc_refusal(stub.ModelMetadata, pb.ModelMetadataRequest(name="nope"))
    until(lambda: counted("ServerMetadata", "OK") == 4)
    until(lambda: counted("ModelMetadata", "NOT_FOUND") == 4)
    until(lambda: "gRPC request: /inference.GRPCInferenceService/ServerMetadata" in server.log_text())
    until(lambda: "ModelMetadata: NOT_FOUND Request for unknown model: 'nope' is not found" in server.log_text())
