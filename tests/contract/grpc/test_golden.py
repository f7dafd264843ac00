"""gRPC calls recorded with a real Triton, replayed against this server.

The status, its message and the answer must be equal. An answer that was recorded in part must begin as the record does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from tritonclient.grpc import service_pb2

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

GOLDEN = ROOT / "tests" / "golden"
SERVICE = "/inference.GRPCInferenceService/"
NOT_LOADED_AT_START = {"badcfg", "broken"}
RECORDED_REPOSITORY = "/models"
LIMIT_S = 30.0

Call = dict[str, Any]


def calls() -> list[Call]:
    return [json.loads(line) for line in (GOLDEN / "grpc.jsonl").read_text().splitlines()]


UNARY = [call for call in calls() if call["rpc"] != "ModelStreamInfer"]
STREAM = [call for call in calls() if call["rpc"] == "ModelStreamInfer"]
SHARED_MEMORY_OFF = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
# The calls that this server answers otherwise on purpose: the status and the answer.
OTHERWISE: dict[int, tuple[str, str]] = {
    2: ("OK", "ready: true\n"),  # the recorded server had models that cannot be loaded
    43: ("UNIMPLEMENTED", SHARED_MEMORY_OFF),
    44: ("UNIMPLEMENTED", SHARED_MEMORY_OFF),
}
# Answers that depend on the server: its version, what it has done and where its models are.
METADATA, STATISTICS, INDEX = 3, 12, 35


@pytest.fixture(scope="module")
def golden_server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    names = sorted({model.name for model in (GOLDEN / "models").iterdir()} - NOT_LOADED_AT_START)
    options = ["--shutdown-grace-secs=0", "--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    with ServerProcess(GOLDEN / "models", tmp_path_factory.mktemp("log") / "log", *options) as running:
        yield running


@pytest.fixture(scope="module")
def channel(golden_server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{golden_server.grpc_port}") as opened:
        yield opened


def message(rpc: str, kind: str, text: str) -> Any:
    return text_format.Parse(text, getattr(service_pb2, rpc + kind)())


def answer_to(channel: grpc.Channel, rpc: str, text: str) -> tuple[str, Any]:
    """The status and the answer, which is the message of the status if it is not OK."""
    call = channel.unary_unary(
        SERVICE + rpc,
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=getattr(service_pb2, f"{rpc}Response").FromString,
    )
    try:
        return "OK", call(message(rpc, "Request", text), timeout=LIMIT_S)
    except grpc.RpcError as error:
        return error.code().name, error.details()  # type: ignore[attr-defined]


@pytest.mark.shapes("one-process", "front-ends")
@pytest.mark.parametrize("call", UNARY, ids=lambda call: f"{call['n']}-{call['rpc']}-{call['note']}")
def test_answer_is_that_of_triton(channel: grpc.Channel, call: Call) -> None:
    status, answer = answer_to(channel, call["rpc"], call["request"])
    if call["n"] in OTHERWISE:
        assert (status, str(answer)) == OTHERWISE[call["n"]]
        return
    assert status == call["status"]
    if status != "OK":
        assert answer.strip().replace(str(GOLDEN / "models"), RECORDED_REPOSITORY) == call["answer"]
    elif call["n"] == METADATA:
        recorded = message(call["rpc"], "Response", call["answer"])
        assert set(answer.extensions) == set(recorded.extensions)
        assert answer.name == recorded.name
    elif call["n"] == STATISTICS:
        (model,) = answer.model_stats
        assert (model.name, model.version) == ("simple", "1")
        assert all(f"    {field.name} {{" in call["answer"] for field, _ in model.inference_stats.ListFields())
        assert len(model.inference_stats.ListFields()) == 8
    elif call["n"] == INDEX:
        ready = [
            f'  name: "{model.name}"\n  version: "{model.version}"\n  state: "{model.state}"\n'
            for model in answer.models
        ]
        for recorded in call["answer"].split("models {\n")[:-1]:
            assert "READY" not in recorded or any(recorded.startswith(model) for model in ready), recorded
    elif call["answer_is_cut"]:
        # The cut may go through an escape sequence.
        assert str(answer).startswith(call["answer"][:-4])
    else:
        assert answer == message(call["rpc"], "Response", call["answer"])


@pytest.mark.shapes("one-process", "front-ends")
def test_a_stream_is_answered_as_by_triton(channel: grpc.Channel) -> None:
    open_stream = channel.stream_stream(
        SERVICE + "ModelStreamInfer",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
    requests = [message("ModelInfer", "Request", call["request"]) for call in STREAM]
    answers = {answer.infer_response.id: answer for answer in open_stream(iter(requests), timeout=LIMIT_S)}
    for call in STREAM:
        answer = answers.pop(call["answer"]["id"])
        response = answer.infer_response
        final = response.parameters.get("triton_final_response")
        assert {
            "error": answer.error_message,
            "id": response.id,
            "model_name": response.model_name,
            "outputs": len(response.outputs),
            "final": None if final is None else final.bool_param,
        } == call["answer"]
    assert answers == {}
