"""Models that answer with errors of any code: none is taken for a refusal or a cancellation, in both server shapes.

Source: docs/spec/grpc.md section 4, docs/spec/http.md section 9, docs/spec/statistics-and-metrics.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.grpc.grpc_requests import LIMIT_S, stub_of
from tests.contract.python.python_models import write_model
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.streamer import write_streamer
from trident.core.errors import ErrorCode
from trident.core.grpc.status import STATUS_OF_CODE
from trident.core.http.errors import STATUS_OF_CODE as HTTP_STATUS

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

TEXT = """
input [ { name: "script" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "said" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
# Says the script, or answers with an error of the code that it names.
PLAIN = """
def execute(self, requests):
    responses = []
    for request in requests:
        script = pb_utils.get_input_tensor_by_name(request, "script").as_numpy()
        word = script.flat[0].decode()
        if hasattr(pb_utils.TritonError, word):
            error = pb_utils.TritonError("it said " + word, getattr(pb_utils.TritonError, word))
            responses.append(pb_utils.InferenceResponse(error=error))
        else:
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("said", script)]))
    return responses
"""
CODES = [code.name for code in ErrorCode]
FINAL = "triton_final_response"


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("codes")
    repository = write_streamer(folder / "models")
    write_model(repository, "plain", PLAIN, TEXT)
    chained = step("plain", {"script": "script"}, {"said": "said"})
    write_ensemble(repository, "chain", [("script", "TYPE_STRING", [1])], [("said", "TYPE_STRING", [1])], [chained])
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


def message(model: str, *script: str, shape: list[int] | None = None, **parameters: bool | int) -> Any:
    request = pb.ModelInferRequest(model_name=model, id="r")
    default = [len(script)] if model == "streamer" else [1, 1]
    request.inputs.add(name="script", datatype="BYTES", shape=shape or default)
    request.raw_input_contents.append(b"".join(len(word).to_bytes(4, "little") + word.encode() for word in script))
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], kind, value)
    return request


def ask(server: ServerProcess, *messages: Any, **metadata: str) -> tuple[list[Any], str, str]:
    """The answers of a stream, its status and its text."""
    found = []
    with stub_of(server) as stub:
        call = stub.ModelStreamInfer(iter(messages), timeout=LIMIT_S, metadata=tuple(metadata.items()))
        try:
            for answer in call:
                found.append(answer)
        except grpc.RpcError as error:
            return found, error.code().name, error.details()
        return found, call.code().name, call.details()


def word_of(model: str, code: str) -> str:
    return f"code {code}" if model == "streamer" else code


@pytest.mark.parametrize("model", ["plain", "streamer", "chain"])
@pytest.mark.parametrize("code", CODES)
def test_model_error_of_any_code_is_a_stream_response(server: ServerProcess, model: str, code: str) -> None:
    text = f"it said {code}" if model != "chain" else f"in ensemble 'chain', it said {code}"
    (found,), status, _ = ask(server, message(model, word_of(model, code)))
    assert (status, found.error_message) == ("OK", text)
    response = found.infer_response
    assert (response.id, response.model_name) == ("r", model)
    assert response.parameters[FINAL].bool_param == (model != "streamer")
    ended = ask(server, message(model, word_of(model, code)), triton_grpc_error="true")
    assert ended == ([], STATUS_OF_CODE[ErrorCode[code]].name, text)


@pytest.mark.parametrize("metadata", [{}, {"triton_grpc_error": "true"}])
def test_refused_request_in_a_stream_does_not_end_it(server: ServerProcess, metadata: dict[str, str]) -> None:
    bad = message("plain", "a", shape=[1, 2])
    found, status, _ = ask(server, bad, message("absent", "a"), message("plain", "b"), **metadata)
    assert (status, len(found)) == ("OK", 3)
    for refused in found[:2]:
        assert refused.error_message
        assert refused.infer_response == pb.ModelInferResponse(id="r")
    assert found[2].infer_response.parameters[FINAL].bool_param


def test_one_response_is_final_and_it_is_the_last(server: ServerProcess) -> None:
    script = message("streamer", "code NOT_FOUND", "ok", triton_enable_empty_final_response=True)
    found, _, _ = ask(server, script)
    assert [bool(each.error_message) for each in found] == [True, False, False]
    assert [each.infer_response.parameters[FINAL].bool_param for each in found] == [False, False, True]


@pytest.mark.parametrize("code", CODES)
def test_model_error_of_any_code_is_an_event(server: ServerProcess, code: str) -> None:
    status = HTTP_STATUS[ErrorCode[code]]
    error = b'data: {"error":"it said %b"}\n\n' % code.encode()
    for model, script, rest in (("plain", code, b""), ("streamer", [f"code {code}", "a", "b"], b'"a"}\n\n')):
        body = json.dumps({"script": script}).encode()
        found, headers, text = server.request("POST", f"/v2/models/{model}/generate_stream", body)
        assert (found, headers["Content-Type"]) == (status, "text/event-stream; charset=utf-8")
        assert text.startswith(error)
        assert rest in text
        assert text.count(b"data: ") == (3 if model == "streamer" else 1)
    for bad in (b'{"script":1}', b"{}"):
        found, headers, _ = server.request("POST", "/v2/models/plain/generate_stream", bad)
        assert (found, headers["Content-Type"]) == (400, "application/json")
