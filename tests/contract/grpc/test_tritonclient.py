"""NVIDIA's client, `tritonclient.grpc` and its asyncio form: all calls, with front ends before the engine.

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
from tritonclient.utils import InferenceServerException

from tests.contract.grpc.grpc_requests import (
    LIMIT_S,
    Responses,
    address_of,
    assert_simple,
    client_of,
    refusal,
    simple_inputs,
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
    repository = link_models(folder / "models", "simple", "cls", "identity_fp32", "multi_v")
    for datatype in TYPES:
        write_version(identity(datatype), repository, f"same_{datatype}")
    write_version(classifier(("cat", "dog", "fish")), repository, "zipped")
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", "--load-model=*", "--id=here")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


# --- inference


def test_an_inference_is_answered_with_its_id_and_model(client: Any) -> None:
    result = client.infer("simple", simple_inputs(), request_id="one")
    assert_simple(result)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("one", "simple", "1")
    assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]


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


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client: Any, algorithm: str) -> None:
    assert_simple(client.infer("simple", simple_inputs(), compression_algorithm=algorithm))
    values = np.zeros((1, 1_000_000), np.float32)
    result = client.infer("same_FP32", [tensor("INPUT0", values, "FP32")], compression_algorithm=algorithm)
    assert np.array_equal(result.as_numpy("OUTPUT0"), values)


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


def test_metadata_and_configuration(client: Any) -> None:
    server = client.get_server_metadata()
    assert server.name == "here"
    assert "binary_tensor_data" in server.extensions
    model = client.get_model_metadata("simple")
    assert (model.name, list(model.versions), model.platform) == ("simple", ["1"], "onnxruntime_onnx")
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]
    config = client.get_model_config("simple").config
    assert (config.name, config.max_batch_size) == ("simple", 8)


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


def test_features_that_are_off(client: Any) -> None:
    off = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    assert len(client.get_system_shared_memory_status().regions) == 0
    assert len(client.get_cuda_shared_memory_status().regions) == 0
    assert refusal(client.get_system_shared_memory_status, "r") == (
        "NOT_FOUND",
        "Unable to find system shared memory region: 'r'",
    )
    assert refusal(client.register_system_shared_memory, "r", "/r", 64) == ("UNIMPLEMENTED", off)
    assert refusal(client.register_cuda_shared_memory, "r", b"", 0, 64) == ("UNIMPLEMENTED", off)
    assert refusal(client.unregister_system_shared_memory, "r") == ("UNIMPLEMENTED", off)
    assert refusal(client.unregister_cuda_shared_memory, "r") == ("UNIMPLEMENTED", off)


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
