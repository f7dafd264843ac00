"""Inference on a payload, with an engine that returns its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.core.http.payloads.payload_models import one
from tests.unit.fake_engine import FakeEngine, FakeModel
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest, ServerError
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.payloads.inference import AnswerType, NotAcceptable, PayloadResult, infer_lines, infer_payload
from trident.core.http.payloads.payload import DecodedPayload
from trident.core.http.reply import Reply
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Array


class Bench:
    """`seen` are the requests that reached the engine."""

    def __init__(self) -> None:
        self.seen: list[InferenceRequest] = []
        self.engine = FakeEngine(self._echo)
        self.engine.versions["m"] = (1,)
        self.application = V2Application(self.engine, HttpOptions(header_forward_pattern="^x-"), ThreadBridge())

    def infer(self, payload: DecodedPayload, spec: ModelSpec, **environ: Any) -> PayloadResult:
        return infer_payload(self.application, environ, FakeModel(self.engine, spec), payload)

    def _echo(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        array = np.asarray(request.inputs[0].data)
        output = OutputTensor("OUT", "FP32", array.shape, array)
        return InferenceResponse(request.model_name, 1, [output], parameters={"n": len(self.seen)})


def payload(array: Array, **more: Any) -> DecodedPayload:
    return DecodedPayload(arrays={"IN": array}, **{"count": len(array), "stacked": True, **more})


@pytest.mark.parametrize(
    ("batch", "stacked", "rows", "sizes"),
    [
        (8, True, 8, [(8, 2)]),
        (8, True, 20, [(8, 2), (8, 2), (4, 2)]),
        (0, False, 1, [(2,)]),
        (0, False, 40, [(2,)] * 40),
        (0, True, 40, [(40, 2)]),
    ],
)
def test_a_payload_is_split_by_the_models_batch_size(batch: int, stacked: bool, rows: int, sizes: list[Any]) -> None:
    bench = Bench()
    array = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    result = bench.infer(payload(array, stacked=stacked), one("FP32", 2, batch=batch))
    assert [request.inputs[0].shape for request in bench.seen] == sizes
    assert np.array_equal(result.columns[0].parts[0], array)
    assert result.parameters == {"n": 1}


# --- inference on request lines, with an engine that returns its inputs


SPEC = one("FP32", 2, batch=2)


class LineBench:
    """`seen` are the requests that reached the engine."""

    def __init__(self, options: HttpOptions | None = None) -> None:
        self.seen: list[InferenceRequest] = []
        self.error: ServerError | None = None
        engine = FakeEngine(self._echo)
        engine.versions[SPEC.name] = (1,)
        self.application = V2Application(engine, options or HttpOptions(), ThreadBridge())

    def infer(self, *lines: bytes, answer_type: AnswerType = lambda is_v2: None, **environ: Any) -> Reply:
        return infer_lines(self.application, environ, SPEC, list(lines), answer_type)

    def _echo(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        if self.error is not None:
            return InferenceResponse("m", 1, [], error=self.error)
        given = request.inputs[0].data
        array = given if isinstance(given, np.ndarray) else np.frombuffer(given, np.float32)
        array = array.reshape(request.inputs[0].shape)
        output = OutputTensor("OUT", "FP32", array.shape, array)
        return InferenceResponse("m", 1, [output], id=request.id, parameters={"n": len(self.seen)})


def v2(*rows: list[int], **more: Any) -> bytes:
    data = [number for row in rows for number in row]
    item = {"name": "IN", "datatype": "FP32", "shape": [len(rows), 2], "data": data}
    return orjson.dumps({"inputs": [item], **more})


def instances(*rows: list[int], **more: Any) -> bytes:
    return orjson.dumps({"instances": rows, **more})


def body(reply: Reply) -> bytes:
    return b"".join(map(bytes, reply.body))


def kind(reply: Reply) -> str:
    return dict(reply.headers)["Content-Type"]


def test_each_document_is_answered_by_a_line_in_order() -> None:
    bench = LineBench()
    lines = [v2([1, 2]), instances([3, 4], [5, 6], [7, 8]), b'{"inputs":{"IN":[[9,9]]}}', b"[[1,1]]"]
    reply = bench.infer(*lines, v2([0, 0], id="last"))
    first, second, third, fourth, last = map(orjson.loads, body(reply).splitlines())
    assert kind(reply) == "application/jsonlines"
    assert body(reply).endswith(b"}\n")
    assert (first["outputs"][0]["data"], first["outputs"][0]["shape"]) == ([1, 2], [1, 2])
    assert second == {"predictions": [[3, 4], [5, 6], [7, 8]]}
    assert (third, fourth) == ({"outputs": [[9, 9]]}, [[1, 1]])
    assert last["id"] == "last"
    assert [request.inputs[0].shape[0] for request in bench.seen] == [1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [("text/csv", b"1.0,2.0\n3.0,4.0\n5.0,6.0\n"), ("application/jsonl", b"[1.0,2.0]\n[3.0,4.0]\n[5.0,6.0]\n")],
)
def test_rows_of_all_documents_are_joined_in_order(media_type: str, expected: bytes) -> None:
    reply = LineBench().infer(v2([1, 2]), instances([3, 4], [5, 6]), answer_type=lambda is_v2: media_type)
    assert (kind(reply), body(reply)) == (media_type, expected)


def test_each_request_has_its_own_parameters_and_the_shared_headers() -> None:
    bench = LineBench(HttpOptions(header_forward_pattern="^x-"))
    bench.infer(v2([1, 2], parameters={"a": 1}), instances([1, 2], parameters={"b": 2}), HTTP_X_TEAM="red")
    assert [request.parameters for request in bench.seen] == [{"a": 1, "x-team": "red"}, {"b": 2, "x-team": "red"}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (instances([1]), "line 2: instance 0, input 'IN': expected a list of 2, got one of 1"),
        (b'{"inputs":[{"name":"IN"}]}', "line 2: Input must set only one of "),
        (b"{", "line 2: failed to parse the request JSON buffer: "),
        (v2([1, 2], parameters={"binary_data_output": True}), "line 2: an answer of lines cannot have binary outputs"),
    ],
)
def test_an_invalid_document_is_named_by_its_line(line: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LineBench().infer(v2([1, 2]), line)
    assert caught.value.message.startswith(message)


def test_documents_that_cannot_be_joined_or_are_too_large_are_refused() -> None:
    with pytest.raises(NotAcceptable, match="answers in application/x-npy cannot be joined line by line"):
        LineBench().infer(v2([1, 2]), answer_type=lambda is_v2: "application/x-npy")
    with pytest.raises(InvalidRequest, match="exceeds the maximum allowed input size of 100 bytes"):
        LineBench(HttpOptions(max_input_size=100)).infer(v2([1, 2]), v2([1, 2]))
