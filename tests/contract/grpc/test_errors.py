"""The status and the text of every error that a real Triton was asked for, and of those in the specification.

Source: docs/spec/grpc.md sections 2, 3 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def changed(change: Callable[[Any], None], **fields: Any) -> Any:
    request = simple_message(**fields)
    change(request)
    return request


def with_input(**fields: Any) -> Any:
    """A request whose first input has other fields."""

    def change(request: Any) -> None:
        for name, value in fields.items():
            if name == "shape":
                request.inputs[0].shape[:] = value
            else:
                setattr(request.inputs[0], name, value)

    return changed(change)


def with_output(**parameters: Any) -> Any:
    return changed(lambda request: request.outputs.add(name="OUTPUT0", parameters=parameters))


def shortened(request: Any) -> None:
    request.raw_input_contents[1] = request.raw_input_contents[1][:60]


def without_first_data(request: Any) -> None:
    del request.raw_input_contents[:]


BAD_REQUESTS = {
    "model": (simple_message(model_name="nope"), NOT_FOUND, "Request for unknown model: 'nope' is not found"),
    "version": (
        simple_message(model_version="9"),
        NOT_FOUND,
        "Request for unknown model: 'simple' version 9 is not found",
    ),
    "version text": (
        simple_message(model_version="abc"),
        INVALID,
        "failed to get model version from specified version string 'abc' (details: stol), "
        "version should be an integral value > 0",
    ),
    "missing input": (
        changed(lambda request: request.inputs.pop()),
        INVALID,
        f"{NO_ID}expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required "
        "input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "too few raw": (
        changed(lambda request: request.raw_input_contents.pop()),
        INVALID,
        "unable to find data for input tensor 'INPUT1' for model 'simple' in request.",
    ),
    "no data": (
        changed(without_first_data),
        INVALID,
        "unable to find data for input tensor 'INPUT0' for model 'simple' in request.",
    ),
    "raw too short": (
        changed(shortened),
        INVALID,
        f"{NO_ID}input byte size mismatch for input 'INPUT1' for model 'simple'. Expected 64, got 60",
    ),
    "datatype": (
        with_input(datatype="FP32"),
        INVALID,
        f"{NO_ID}inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'",
    ),
    "no datatype": (
        with_input(datatype="FOO"),
        INVALID,
        f"{NO_ID}inference input 'INPUT0' data-type is '<invalid>', but model 'simple' expects 'INT32'",
    ),
    "shape": (
        with_input(shape=[1, 15]),
        INVALID,
        f"{NO_ID}unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,15]. NOTE: Setting a "
        "non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. "
        "If you want to specify the full shape including the batch dim in your input dims config, try setting "
        "max_batch_size to zero. See the model configuration docs for more info on max_batch_size.",
    ),
    "batch": (
        changed(lambda request: [each.shape.__setitem__(0, 9) for each in request.inputs]),
        INVALID,
        f"{NO_ID}inference request batch-size must be <= 8 for 'simple'",
    ),
    "negative": (
        with_input(shape=[-1, 16]),
        INVALID,
        f"{NO_ID}input 'INPUT0' batch size does not match other inputs for 'simple'",
    ),
    "unknown input": (
        with_input(name="FOO"),
        INVALID,
        "unexpected inference input 'FOO' for model 'simple'",
    ),
    "unknown output": (
        changed(lambda request: request.outputs.add(name="NOPE")),
        INVALID,
        "unexpected inference output 'NOPE' for model 'simple'",
    ),
    "typed and raw": (
        changed(lambda request: request.inputs[0].contents.int_contents.extend(range(16))),
        INVALID,
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'simple'",
    ),
    "wrong field": (
        typed(fp32_contents=[0.0] * 16),
        INVALID,
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'simple' of type 'FP32', expected "
        "datatype 'INT32'",
    ),
    "two fields": (
        typed(int_contents=[0] * 16, int64_contents=[0]),
        INVALID,
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'simple', binary data was already "
        "supplied.",
    ),
    "typed too short": (
        typed(int_contents=[0] * 10),
        INVALID,
        f"{NO_ID}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 40",
    ),
    "classes": (
        with_output(classification={"string_param": "1"}),
        INVALID,
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    "no classes": (
        with_output(classification={"int64_param": 0}),
        INVALID,
        "invalid value for 'classification' parameter, expected >= 0",
    ),
    "classes and memory": (
        with_output(
            classification={"int64_param": 1},
            shared_memory_region={"string_param": "r"},
            shared_memory_byte_size={"int64_param": 64},
        ),
        INVALID,
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
    **{
        key: (simple_message(parameters={key: value}), INVALID, text)
        for key, value, text in (
            (
                "sequence_id",
                {"bool_param": True},
                "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
            ),
            (
                "sequence_start",
                {"int64_param": 1},
                "invalid value type for 'sequence_start' parameter, expected bool_param.",
            ),
            (
                "sequence_end",
                {"int64_param": 1},
                "invalid value type for 'sequence_end' parameter, expected bool_param.",
            ),
            ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
            ("timeout", {"string_param": "1"}, "invalid value type for 'timeout' parameter, expected int64_param."),
            (
                "triton_enable_empty_final_response",
                {"int64_param": 1},
                "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
            ),
            (
                "triton_other",
                {"int64_param": 1},
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                "starting with 'triton_' are allowed: triton_enable_empty_final_response",
            ),
            (
                "mine",
                {"uint64_param": 1},
                "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.",
            ),
        )
    },
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_has_tritons_status_and_text(stub: Any, case: str) -> None:
    request, status, text = BAD_REQUESTS[case]
    assert rpc_refusal(stub.ModelInfer, request) == (status, text)


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


BAD_CALLS = {
    "ModelMetadata": (
        pb.ModelMetadataRequest(name="simple", version="9"),
        NOT_FOUND,
        "Request for unknown model: 'simple' version 9 is not found",
    ),
    "ModelConfig": (pb.ModelConfigRequest(name="nope"), NOT_FOUND, "Request for unknown model: 'nope' is not found"),
    "ModelStatistics": (
        pb.ModelStatisticsRequest(name="nope"),
        INVALID,
        "requested model 'nope' is not available",
    ),
    "RepositoryIndex": (
        pb.RepositoryIndexRequest(repository_name="r"),
        UNIMPLEMENTED,
        "'repository_name' specification is not supported",
    ),
    "RepositoryModelUnload": (
        pb.RepositoryModelUnloadRequest(model_name="m", parameters={"unload_dependents": {"int64_param": 1}}),
        INVALID,
        "invalid value type for 'unload_dependents' parameter, expected bool_param.",
    ),
}


@pytest.mark.parametrize("method", BAD_CALLS)
def test_a_bad_call_has_tritons_status_and_text(stub: Any, method: str) -> None:
    request, status, text = BAD_CALLS[method]
    assert rpc_refusal(getattr(stub, method), request) == (status, text)


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        (
            {"config": {"int64_param": 1}},
            INVALID,
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            {"file:1/m": {"string_param": "x"}},
            INVALID,
            "invalid value type for load parameter 'file:1/m', expected bytes_param.",
        ),
        ({"other": {"string_param": "x"}}, INVALID, "unrecognized load parameter 'other'."),
    ],
)
def test_a_bad_load_has_tritons_status_and_text(stub: Any, parameters: dict[str, Any], status: str, text: str) -> None:
    request = pb.RepositoryModelLoadRequest(model_name="simple", parameters=parameters)
    assert rpc_refusal(stub.RepositoryModelLoad, request) == (status, text)


def test_a_failed_load_tells_its_reason(stub: Any) -> None:
    status, text = rpc_refusal(stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="broken"))
    assert (status, text.startswith("load failed for model 'broken': version 1 is at UNAVAILABLE state: ")) == (
        INVALID,
        True,
    )


def test_an_unknown_model_cannot_be_loaded_and_need_not_be_unloaded(stub: Any) -> None:
    assert rpc_refusal(stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="nope")) == (
        INTERNAL,
        "failed to load 'nope', failed to poll from model repository",
    )
    stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="nope"), timeout=LIMIT_S)


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
