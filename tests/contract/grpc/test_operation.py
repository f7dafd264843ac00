"""What an operator sets and sees: restricted protocols, forwarded metadata, compression, reflection, metrics, health.

Source: docs/spec/grpc.md sections 2, 3 and 6; docs/spec/server-options.md section 2.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_requests import (
    CHECK,
    LIMIT_S,
    Responses,
    address_of,
    client_of,
    refusal,
    rpc_refusal,
    simple_inputs,
    simple_message,
    stub_of,
    tensor,
)
from tests.contract.grpc.raw_connection import INFER, raw_connection
from tests.contract.python.python_models import write_model
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until
from trident.app.worker.http2 import frames

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

# A model that answers with the parameters of its request.
PARAMETERS_CONFIG = """
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
PARAMETERS = """
def execute(self, requests):
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([request.parameters().encode()], np.object_))])
        for request in requests
    ]
"""
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    options = (
        "--shutdown-grace-secs=0",
        "--grpc-header-forward-pattern=^(x-.*|priority)$",
        "--grpc-infer-response-compression-level=high",
        "--grpc-max-message-size=2000000",
        "--log-verbose=1",
    )
    repository = link_models(folder / "models", "simple", "identity_fp32")
    write_model(repository, "parameters", PARAMETERS, PARAMETERS_CONFIG, max_batch_size=0)
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running


def test_metadata_that_match_the_pattern_are_forwarded(server: ServerProcess) -> None:
    """As parameters, which the model sees; in a stream those of the call go with each request."""
    headers = {"x-mine": "1", "x-other": "zwei", "authorization": "Basic x"}
    number = tensor("IN", np.array([1], np.int32), "INT32")
    with client_of(server) as client:
        result = client.infer("parameters", [number], headers=headers, parameters={"own": 5})
        assert json.loads(result.as_numpy("OUT")[0]) == {"own": 5, "x-mine": "1", "x-other": "zwei"}
        responses = Responses()
        client.start_stream(responses.put, headers={"x-mine": "2"})
        for own in range(2):
            client.async_stream_infer("parameters", [number], parameters={"own": own})
            assert json.loads(responses.next_result().as_numpy("OUT")[0]) == {"own": own, "x-mine": "2"}
        client.stop_stream()
        assert refusal(client.infer, "simple", simple_inputs(), headers={"priority": "1"}) == (
            "INVALID_ARGUMENT",
            "Header 'priority' is reserved for Triton usage and cannot be forwarded.",
        )


@pytest.mark.parametrize("elements", [1000, 40_000])
@pytest.mark.parametrize("path", [INFER, STREAM_INFER])
@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [(b"identity, deflate, gzip", b"deflate"), (b"gzip", b"gzip"), (b"identity", None), (None, None)],
)
def test_responses_are_compressed_for_those_who_accept_it(
    server: ServerProcess, accepted: bytes | None, encoding: bytes | None, path: str, elements: int
) -> None:
    """As bytes on the wire: a gRPC library decompresses the message and does not tell."""
    values = np.zeros((1, elements), np.float32)
    request = pb.ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    metadata = () if accepted is None else ((b"grpc-accept-encoding", accepted),)
    with raw_connection(server, settings={frames.INITIAL_WINDOW_SIZE: 1 << 20}) as client:
        client.send(frames.window_update(0, 1 << 20))
        client.call(1, request.SerializeToString(), path, metadata)
        fields, content = client.answer()
    assert fields[b"grpc-status"] == b"0"
    assert fields.get(b"grpc-encoding") == encoding
    flag, size, message = content[0], int.from_bytes(content[1:5], "big"), content[5:]
    assert (flag, size) == (int(encoding is not None), len(message))
    if encoding is not None:
        assert size < values.nbytes / 10
        message = zlib.decompress(message, 16 + zlib.MAX_WBITS if encoding == b"gzip" else zlib.MAX_WBITS)
    answer = pb.ModelInferResponse() if path == INFER else pb.ModelStreamInferResponse()
    answer.ParseFromString(message)
    response = answer if path == INFER else answer.infer_response
    assert response.raw_output_contents[0] == values.tobytes()


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
    until(lambda: "gRPC request: /inference.GRPCInferenceService/ServerMetadata" in server.log_text())
    until(lambda: "ModelMetadata: NOT_FOUND Request for unknown model: 'nope' is not found" in server.log_text())


def test_the_health_service(server: ServerProcess) -> None:
    with grpc.insecure_channel(address_of(server)) as channel:
        check = channel.unary_unary(CHECK)
        assert check(b"", timeout=LIMIT_S) == b"\x08\x01"
        assert check(b"\x0a\x04else", timeout=LIMIT_S) == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=LIMIT_S)
        assert next(watch) == b"\x08\x01"
        watch.cancel()


def test_server_reflection(server: ServerProcess) -> None:
    with grpc.insecure_channel(address_of(server)) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        found = database.FindFileContainingSymbol("inference.GRPCInferenceService")
        assert len(found.service[0].method) == 20


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


def test_a_balancer_gets_the_load_behind_the_answer(server: ServerProcess) -> None:
    asked = (("endpoint-load-metrics-format", "json"),)
    with stub_of(server) as stub:
        answer, call = stub.ModelInfer.with_call(simple_message(), timeout=LIMIT_S, metadata=asked)
        _, plain = stub.ModelInfer.with_call(simple_message(), timeout=LIMIT_S)
    assert answer.model_name == "simple"
    assert '"pending_requests":' in dict(call.trailing_metadata())["endpoint-load-metrics"]
    assert not plain.trailing_metadata()
