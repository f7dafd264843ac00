"""Errors of calls: each layer's status and text reaches the client. What each refuses is tested without a server.

Source: docs/spec/grpc.md sections 2, 3 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_requests import LIMIT_S, address_of, rpc_refusal, simple_message, stub_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

INVALID, NOT_FOUND, UNIMPLEMENTED, INTERNAL = "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "INTERNAL"
NO_ID = "[request id: <id_unknown>] "


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    repository = link_models(folder / "models", "simple", "broken")
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", "--load-model=simple")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running


@pytest.fixture
def stub(server: ServerProcess) -> Iterator[Any]:
    with stub_of(server) as stub:
        yield stub


def typed(**contents: list[Any]) -> Any:
    """A request whose tensors are typed: the first as given, the second right."""
    request = simple_message()
    del request.raw_input_contents[:]
    for name, values in contents.items():
        getattr(request.inputs[0].contents, name).extend(values)
    request.inputs[1].contents.int_contents.extend(range(16))
    return request


def without_an_input() -> Any:
    request = simple_message()
    request.inputs.pop()
    return request


@pytest.mark.parametrize(
    ("method", "request_message", "status", "text"),
    [
        ("ModelInfer", simple_message(model_name="nope"), NOT_FOUND, "Request for unknown model: 'nope' is not found"),
        ("ModelInfer", without_an_input(), INVALID, f"{NO_ID}expected 2 inputs but got 1 inputs for model 'simple'."),
        (
            "ModelInfer",
            typed(int_contents=[0] * 10),
            INVALID,
            f"{NO_ID}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 40",
        ),
        (
            "ModelInfer",
            simple_message(parameters={"sequence_start": {"int64_param": 1}}),
            INVALID,
            "invalid value type for 'sequence_start' parameter, expected bool_param.",
        ),
        (
            "ModelMetadata",
            pb.ModelMetadataRequest(name="simple", version="9"),
            NOT_FOUND,
            "Request for unknown model: 'simple' version 9 is not found",
        ),
        (
            "ModelStatistics",
            pb.ModelStatisticsRequest(name="nope"),
            INVALID,
            "requested model 'nope' is not available",
        ),
        (
            "RepositoryIndex",
            pb.RepositoryIndexRequest(repository_name="r"),
            UNIMPLEMENTED,
            "'repository_name' specification is not supported",
        ),
        (
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name="broken"),
            INVALID,
            "load failed for model 'broken': version 1 is at UNAVAILABLE state: ",
        ),
        (
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name="nope"),
            INTERNAL,
            "failed to load 'nope', failed to poll from model repository",
        ),
    ],
)
def test_a_refusal_has_tritons_status_and_text(
    stub: Any, method: str, request_message: Any, status: str, text: str
) -> None:
    refused = rpc_refusal(getattr(stub, method), request_message)
    assert (refused[0], refused[1].startswith(text)) == (status, True), refused


def test_typed_contents_and_all_parameters_are_taken(stub: Any) -> None:
    request = typed(int_contents=list(range(16)))
    for key, value in {
        "sequence_id": {"string_param": "a"},
        "priority": {"uint64_param": 1},
        "timeout": {"int64_param": 1_000_000},
        "mine": {"double_param": 1.5},
        "binary_data_output": {"bool_param": True},
    }.items():
        request.parameters[key].CopyFrom(pb.InferParameter(**value))
    response = stub.ModelInfer(request, timeout=LIMIT_S)
    assert np.frombuffer(response.raw_output_contents[0], np.int32).tolist() == list(range(0, 32, 2))
    assert not response.outputs[0].contents.ByteSize()


def test_errors_have_their_hint_in_the_trailers(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stub.RepositoryModelLoad(
            pb.RepositoryModelLoadRequest(model_name="m", parameters={"other": {"string_param": "x"}}), timeout=LIMIT_S
        )
    trailers = dict(refused.value.trailing_metadata())
    assert trailers["trident-hint"] == "the parameters are 'config' and 'file:PATH'"


@pytest.mark.parametrize(
    ("method", "content", "status", "text"),
    [
        ("/inference.GRPCInferenceService/Nope", b"", UNIMPLEMENTED, "unknown method"),
        ("/other.Service/Do", b"", UNIMPLEMENTED, "unknown method"),
        ("/inference.GRPCInferenceService/ModelInfer", b"\xff\xff", INTERNAL, "Unable to parse request"),
        ("/inference.GRPCInferenceService/ModelReady", b"\x0a\xff", INTERNAL, "Unable to parse request"),
    ],
)
def test_calls_that_no_stub_makes(server: ServerProcess, method: str, content: bytes, status: str, text: str) -> None:
    with grpc.insecure_channel(address_of(server)) as channel:
        refused = rpc_refusal(channel.unary_unary(method), content)
    assert (refused[0], refused[1].startswith(text)) == (status, True)
