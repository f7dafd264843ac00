"""What an operator sets and sees: restricted protocols, forwarded metadata, compression, reflection, metrics, health.

Source: docs/spec/grpc.md sections 2, 3 and 6; docs/spec/server-options.md section 2.
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
    CHECK,
    LIMIT_S,
    address_of,
    assert_simple,
    client_of,
    refusal,
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

KEY = {"triton-grpc-protocol-admin": "secret"}
CLOSED = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    options = (
        "--shutdown-grace-secs=0",
        "--grpc-restricted-protocol=model-repository,trace:admin=secret",
        "--grpc-header-forward-pattern=^(x-.*|priority)$",
        "--grpc-infer-response-compression-level=high",
        "--grpc-max-message-size=2000000",
        "--log-verbose=1",
    )
    with ServerProcess(link_models(folder / "models", "simple", "identity_fp32"), folder / "log", *options) as running:
        yield running


def test_restricted_protocols_want_their_metadata(server: ServerProcess) -> None:
    with client_of(server) as client:
        for call in (
            lambda **kwargs: client.get_model_repository_index(**kwargs),
            lambda **kwargs: client.load_model("simple", **kwargs),
            lambda **kwargs: client.unload_model("nope", **kwargs),
            lambda **kwargs: client.get_trace_settings(**kwargs),
        ):
            assert refusal(call) == ("UNAVAILABLE", CLOSED)
            assert refusal(call, headers={"triton-grpc-protocol-admin": "wrong"}) == ("UNAVAILABLE", CLOSED)
        assert client.get_model_repository_index(headers=KEY).models[0].name
        assert client.is_server_ready()
        assert_simple(client.infer("simple", simple_inputs()))


def test_metadata_that_match_the_pattern_are_forwarded(server: ServerProcess) -> None:
    with client_of(server) as client:
        assert_simple(client.infer("simple", simple_inputs(), headers={"x-mine": "1", "authorization": "Basic x"}))
        assert refusal(client.infer, "simple", simple_inputs(), headers={"priority": "1"}) == (
            "INVALID_ARGUMENT",
            "Header 'priority' is reserved for Triton usage and cannot be forwarded.",
        )


def test_large_responses_are_compressed_for_those_who_accept_it(server: ServerProcess) -> None:
    values = np.zeros((1, 200_000), np.float32)
    request = pb.ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    with stub_of(server) as stub:
        response, call = stub.ModelInfer.with_call(request, timeout=LIMIT_S)
        assert response.raw_output_contents[0] == values.tobytes()
        assert dict(call.initial_metadata()).get("grpc-encoding") in ("deflate", None)
        answers = stub.ModelStreamInfer(iter([request] * 3), timeout=LIMIT_S)
        assert [each.infer_response.raw_output_contents[0] == values.tobytes() for each in answers] == [True] * 3


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_messages_over_the_limit_are_refused(server: ServerProcess, compression: Any) -> None:
    request = pb.ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1_000_000])
    request.raw_input_contents.append(bytes(4_000_000))
    with stub_of(server) as stub:
        status, text = rpc_refusal(stub.ModelInfer, request, compression=compression)
        assert status == "RESOURCE_EXHAUSTED"
        assert text.startswith("Received message larger than max (")
        assert text.endswith(" vs. 2000000)")
        assert stub.ModelInfer(simple_message(), timeout=LIMIT_S).model_name == "simple"


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
    assert "gRPC request: /inference.GRPCInferenceService/ServerMetadata" in server.log_text()
    assert "ModelMetadata: NOT_FOUND Request for unknown model: 'nope' is not found" in server.log_text()


def test_the_health_service(server: ServerProcess) -> None:
    with grpc.insecure_channel(address_of(server)) as channel:
        check = channel.unary_unary(CHECK)
        assert check(b"", timeout=LIMIT_S) == b"\x08\x01"
        assert check(b"\x0a\x04else", timeout=LIMIT_S) == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=LIMIT_S)
        assert next(watch) == b"\x08\x01"
        watch.cancel()


def test_server_reflection(server: ServerProcess) -> None:
    reflection = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")
    with grpc.insecure_channel(address_of(server)) as channel:
        database = reflection.ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        found = database.FindFileContainingSymbol("inference.GRPCInferenceService")
        assert len(found.service[0].method) == 20


def test_slow_calls_do_not_hold_up_health_checks(server: ServerProcess) -> None:
    """Calls that wait for storage or for protobuf are under way all the time."""
    stop = threading.Event()

    def ask() -> None:
        with client_of(server) as client:
            while not stop.is_set():
                client.get_model_repository_index(headers=KEY)
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
