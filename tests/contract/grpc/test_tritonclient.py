"""NVIDIA's client, `tritonclient.grpc` and its asyncio form, with front ends before the engine, and how its calls are
counted.

Source: docs/spec/grpc.md sections 1 to 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from tests.contract.grpc.grpc_requests import (
    LIMIT_S,
    Responses,
    address_of,
    assert_simple,
    client_of,
    refusal,
    rpc_refusal,
    simple_inputs,
    stub_of,
    tensor,
)
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.contract.servers.typed_values import TYPES, values_of
from tests.unit.onnx_models import classifier, identity, write_version
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    repository = link_models(folder / "models", "simple")
    for datatype in TYPES:
        write_version(identity(datatype), repository, f"same_{datatype}")
    write_version(classifier(("cat", "dog", "fish")), repository, "zipped")
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", "--load-model=*", "--log-verbose=1")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


# --- inference


@pytest.mark.parametrize("datatype", TYPES)
def test_every_datatype_passes(client: Any, datatype: str) -> None:
    values = values_of(datatype)
    answer = client.infer(f"same_{datatype}", [tensor("INPUT0", values, datatype)]).as_numpy("OUTPUT0")
    assert answer.shape == values.shape
    assert answer.tolist() == values.tolist()
    if datatype != "BYTES":
        assert answer.tobytes() == values.tobytes()


@pytest.mark.parametrize("megabytes", [1, 20])
def test_large_tensors_pass(client: Any, megabytes: int) -> None:
    values = np.arange(megabytes * 250_000, dtype=np.float32).reshape(1, -1)
    result = client.infer("same_FP32", [tensor("INPUT0", values, "FP32")])
    assert np.array_equal(result.as_numpy("OUTPUT0"), values)


def test_requested_outputs_and_classes(client: Any) -> None:
    result = client.infer("simple", simple_inputs(), outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert result.as_numpy("OUTPUT0") is None
    assert result.as_numpy("OUTPUT1").tolist() == [list(range(-3, 13))]
    classes = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    assert client.infer("simple", simple_inputs(), outputs=classes).as_numpy("OUTPUT0").tolist() == [
        [b"18:15", b"17:14"]
    ]


def test_callbacks_get_results_and_errors(client: Any) -> None:
    responses = [Responses() for _ in range(40)]
    for seed, each in enumerate(responses):
        client.async_infer("nope" if seed == 7 else "simple", simple_inputs(seed), each.put)
    for seed, each in enumerate(responses):
        if seed == 7:
            assert each.next_error().status() == "StatusCode.NOT_FOUND"
        else:
            assert_simple(each.next_result(), seed)


def test_a_stream_mixes_models_and_one_bad_request_does_not_disturb_it(client: Any) -> None:
    responses = Responses()
    client.start_stream(responses.put)
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    for seed in range(0, 30, 3):
        client.async_stream_infer("simple", simple_inputs(seed), request_id=str(seed))
        client.async_stream_infer("nope", simple_inputs(), request_id=str(seed + 1))
        client.async_stream_infer("same_FP32", [tensor("INPUT0", values, "FP32")], request_id=str(seed + 2))
    for seed in range(0, 30, 3):
        result = responses.next_result()
        assert result.get_response().id == str(seed)
        assert result.get_response().parameters["triton_final_response"].bool_param is True
        assert_simple(result, seed)
        assert responses.next_error().message() == "Request for unknown model: 'nope' is not found"
        assert np.array_equal(responses.next_result().as_numpy("OUTPUT0"), values)
    client.stop_stream()


def test_the_asyncio_client(server: ServerProcess) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for seed in range(10):
            yield {"model_name": "simple", "inputs": simple_inputs(seed), "request_id": str(seed)}

    async def test() -> None:
        async with triton_aio.InferenceServerClient(address_of(server)) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(*(client.infer("simple", simple_inputs(seed)) for seed in range(50)))
            for seed, result in enumerate(results):
                assert_simple(result, seed)
            seen = 0
            async for result, error in client.stream_infer(requests()):
                assert error is None
                assert_simple(result, seen)
                seen += 1
            assert seen == 10

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


# --- the other calls


def test_a_model_is_unloaded_and_loaded(client: Any, server: ServerProcess) -> None:
    index = {model.name: model.state for model in client.get_model_repository_index().models}
    assert index["zipped"] == "READY"
    client.unload_model("zipped")

    def state() -> str:
        return {model.name: model.state for model in client.get_model_repository_index().models}["zipped"]

    until(lambda: state() == "UNAVAILABLE")
    assert not client.is_model_ready("zipped")
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready("simple", "9")
    assert refusal(client.infer, "zipped", []) == (
        "NOT_FOUND",
        "Request for unknown model: 'zipped' has no available versions",
    )
    client.load_model("zipped")
    assert client.is_model_ready("zipped")
    client.unload_model("nope")


def test_trace_settings(client: Any) -> None:
    assert client.get_trace_settings(as_json=True)["settings"]["trace_level"]["value"] == ["OFF"]
    with pytest.raises(InferenceServerException, match="Request for unknown model : nope"):
        client.get_trace_settings("nope")
    with pytest.raises(InferenceServerException, match="Request for unknown model : nope"):
        client.update_trace_settings("nope", settings={"trace_rate": "1"})
    changed = client.update_trace_settings("simple", settings={"trace_rate": "7", "trace_count": "3"}, as_json=True)
    assert changed["settings"]["trace_rate"]["value"] == ["7"]
    assert client.get_trace_settings(as_json=True)["settings"]["trace_rate"]["value"] == ["1000"]
    cleared = client.update_trace_settings("simple", settings={"trace_rate": None, "trace_count": []}, as_json=True)
    assert cleared["settings"]["trace_count"]["value"] == ["-1"]
    refused = refusal(client.update_trace_settings, settings={"trace_rate": ["1", "2"]})
    assert refused == ("INVALID_ARGUMENT", "expect only 1 value for 'trace_rate'")
    refused = refusal(client.update_trace_settings, settings={"trace_file": "x"})
    assert refused == ("UNIMPLEMENTED", "trace file location can not be updated through network protocol")


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
