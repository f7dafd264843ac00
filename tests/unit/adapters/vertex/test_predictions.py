"""Requests on the predict route: kinds of bodies, targets, limits and errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest

from tests.project import pure_python_only
from tests.unit.adapters.platform_bench import V2
from tests.unit.adapters.vertex.vertex_bench import VertexBench
from tests.unit.core.http.streaming_engine import StreamingEngine, said
from trident.adapters.vertex.platform import PayloadKind
from trident.adapters.vertex.predict import Target, names_model, read_target, take_target
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.http.errors import HINT_HEADER
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import BY_NAME
from trident.core.lifecycle.state import IndexEntry

JSON = "application/json"
EVENTS = "text/event-stream"
INSTANCES = b'{"instances":[[1,2]]}'
PREDICTION = {"predictions": [[1, 2]]}


# --- kinds of bodies


@pytest.mark.parametrize(
    ("payload", "body", "outcome"),
    [
        ("auto", INSTANCES, "instances"),
        ("auto", V2, "v2"),
        ("instances", INSTANCES, "instances"),
        ("instances", V2, "expected a JSON object with 'instances'"),
        ("v2", V2, "v2"),
        ("v2", INSTANCES, "Unable to parse 'inputs'"),
    ],
)
@pytest.mark.parametrize("content_type", [JSON, None])
def test_the_payload_option_overrides_the_body(
    payload: str, body: bytes, outcome: str, content_type: str | None
) -> None:
    answer = VertexBench(payload=PayloadKind(payload)).predict(body, content_type)
    if answer.status_code == 200:
        assert outcome == ("v2" if "outputs" in answer.json else "instances")
    else:
        assert (answer.status_code, list(answer.json)) == (400, ["error"])
        assert outcome in answer.json["error"]


@pytest.mark.parametrize("body", [b"{}", b"5", b"null", b'"instances"', b'{"input":[1]}', b'{"Instances":[1]}'])
def test_body_of_unknown_form_is_refused(body: bytes) -> None:
    answer = VertexBench().predict(body)
    assert (answer.status_code, answer.mimetype) == (400, JSON)
    assert "{'instances': [...]}" in answer.json["error"]
    assert "'inputs'" in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b'{"instances":[[1]],"Parameters":{}}', {}, 400, "unknown member 'Parameters'"),
        (b"1,2", {"content_type": "image/png"}, 415, "application/vnd.vertex-ai-triton.binary+json;json-header-size=N"),
        (b"1,2\n", {"content_type": "text/csv", "Accept": "image/png"}, 406, "text/csv"),
        (b"0" * 10, {"Content_Encoding": "gzip"}, 400, "failed to decompress"),
    ],
)
def test_what_cannot_be_read_or_written_has_the_status_of_its_kind(
    body: bytes, headers: dict[str, Any], status: int, text: str
) -> None:
    answer = VertexBench().predict(body, **headers)
    assert (answer.status_code, answer.mimetype) == (status, JSON)
    assert text in answer.json["error"]


# --- targets


def test_target_parameters_are_removed_and_others_forwarded() -> None:
    bench = VertexBench()
    named = {"model": "simple", "version": "1", "id": "r7", "outputs": ["OUT"]}
    parameters = {**named, "priority": 2.0, "a": "b", "c": 1.5}
    assert bench.predict({"instances": [[1]], "parameters": parameters}).json == {"predictions": [[1]]}
    (request,) = bench.seen
    assert (request.model_name, request.model_version, request.id) == ("simple", 1, "r7")
    assert (request.outputs, request.priority, request.parameters) == (("OUT",), 2, {"a": "b", "c": 1.5})


def test_every_request_of_a_payload_has_the_same_target() -> None:
    bench = VertexBench()
    body = {"instances": [[1], [2], [3]], "parameters": {"version": 3, "id": "r7", "a": "b"}}
    assert bench.predict(body).json == {"predictions": [[1], [2], [3]]}
    assert bench.engine.holds == [("simple", 3)]
    assert {(each.model_version, each.id, str(each.parameters)) for each in bench.seen} == {(-2, "r7", "{'a': 'b'}")}


def test_several_models_without_a_default_are_refused() -> None:
    bench = VertexBench()
    bench.engine.repository_index = lambda ready_only: [IndexEntry(name=name) for name in ("b", "simple")]  # type: ignore[method-assign]
    answer = bench.predict(INSTANCES)
    assert (answer.status_code, answer.json) == (400, {"error": "there are several models: b, simple"})
    assert "--vertex-ai-default-model" in answer.headers[HINT_HEADER]
    assert "'parameters.model'" in answer.headers[HINT_HEADER]
    assert bench.predict({"instances": [[1]], "parameters": {"model": "simple"}}).status_code == 200
    assert bench.predict(V2).status_code == 400


# --- streams


@pytest.mark.parametrize(
    ("body", "accept"),
    [(INSTANCES, EVENTS), ({"instances": [[1, 2]], "parameters": {"stream": True}}, None), ([[1, 2]], EVENTS)],
)
def test_a_stream_has_the_predictions_of_each_response(body: Any, accept: str | None) -> None:
    bench = VertexBench()
    answer = bench.predict(body, **({"Accept": accept} if accept else {}))
    assert (answer.status_code, answer.content_type) == (200, f"{EVENTS}; charset=utf-8")
    predicted = PREDICTION if body != [[1, 2]] else [[1, 2]]
    assert answer.data == b"data: %b\n\n" % orjson.dumps(predicted)
    bench.error = BackendFailed("broken")
    answer = bench.predict(body, **({"Accept": accept} if accept else {}))
    assert (answer.status_code, answer.data) == (500, b'data: {"error":"broken"}\n\n')


def test_a_stream_is_the_answer_to_one_request() -> None:
    bench = VertexBench()
    answer = bench.predict({"instances": [[1], [2]]}, Accept=EVENTS)
    assert (answer.status_code, "2 instances are several" in answer.json["error"]) == (400, True)
    answer = bench.predict(V2, Accept=EVENTS)
    assert (answer.status_code, answer.mimetype) == (501, JSON)
    assert "'instances'" in answer.headers[HINT_HEADER]
    assert bench.seen == []
    assert bench.predict({"instances": [[1]], "parameters": {"stream": "no"}}).status_code == 400


def test_a_stream_that_takes_too_long_ends_with_an_error() -> None:
    bench = VertexBench(timeout_s=0.05)
    bench.engine = bench.application.engine = StreamingEngine(lambda request: [said("a")])
    answer = bench.predict({"instances": [[1]], "parameters": {"model": "simple"}}, Accept=EVENTS)
    assert answer.status_code == 200
    first, second, rest = answer.data.split(b"\n\n")
    assert (first, rest) == (b'data: {"predictions":[["a"]]}', b"")
    assert b"there was no answer within 0.05 seconds" in second
    assert len(bench.engine.cancelled) == 1


# --- generate

OBJECT = {"OUT": [1, 2], "model_name": "simple", "model_version": "3"}


@pytest.mark.parametrize(
    ("payload", "body", "is_generate"),
    [
        ("auto", {"IN": [1, 2]}, True),
        ("auto", {"speed": 1, "parameters": {"IN": [1, 2]}}, True),
        ("auto", {"speed": 1}, False),
        ("generate", {"IN": [1, 2]}, True),
        ("v2", {"IN": [1, 2]}, False),
        ("instances", {"IN": [1, 2]}, False),
    ],
)
def test_an_object_with_a_value_for_an_input_is_generated(payload: str, body: Any, is_generate: bool) -> None:
    answer = VertexBench(payload=PayloadKind(payload)).predict(body)
    assert (answer.status_code, answer.json == OBJECT) == ((200, True) if is_generate else (400, False))


@pytest.mark.parametrize(
    ("body", "accept", "is_stream"),
    [
        ({"IN": [1, 2]}, EVENTS, True),
        ({"IN": [1, 2], "stream": True}, JSON, True),
        ({"IN": [1, 2], "parameters": {"stream": True}}, JSON, True),
        ({"IN": [1, 2], "stream": False}, JSON, False),
    ],
)
def test_accept_header_or_stream_member_selects_events(body: Any, accept: str, is_stream: bool) -> None:
    answer = VertexBench().predict(body, Accept=accept)
    assert answer.status_code == 200
    assert (answer.content_type == f"{EVENTS}; charset=utf-8", answer.data.startswith(b"data: ")) == (is_stream,) * 2


# --- the model, version and outputs that a document names


@pytest.mark.parametrize(
    ("name", "expected", "values"),
    [
        ("model", "the name of a model", [None, True, 5, 1.5, [], {}, ["a"]]),
        ("id", "a string", [None, True, 5, 1.5, [], {"a": "b"}]),
        ("version", "the number of a version", [None, True, 1.5, float("nan"), -2, 2**63, "", "1.0", "٣", "9" * 50]),
        ("outputs", "a list of names of outputs", [None, True, 1, {}, [1], ["A", None], [["A"]]]),
        ("stream", "true or false", [None, 0, 1, "true", [], {}]),
    ],
)
def test_invalid_members_are_refused(name: str, expected: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=rf"^'parameters\.{name}': expected {expected}, got "):
            take_target({name: value})


def test_model_is_read_from_a_long_document() -> None:
    text = '{"instances":["' + "x" * 10_000 + '"],"parameters":{"model":"cat"}}'
    body = text.encode()
    assert names_model(body)
    assert read_target(body) == Target("cat")
    assert not names_model(body.replace(b"model", b"other"))
    with pytest.raises(InvalidRequest, match="failed to parse"):
        read_target(body[:-1])


# --- texts


def text_spec(backend: str, decoupled: bool, name: str, version: int = -1) -> ModelSpec:
    """A model that embeds texts, or answers a text with it."""
    output, datatype = ("embedding", "FP32") if backend == "text" else ("text", "BYTES")
    return ModelSpec(
        name=name,
        version=version,
        platform="",
        backend=backend,
        max_batch_size=0,
        decoupled=decoupled,
        inputs={"text": InputSpec(name="text", datatype=BY_NAME["BYTES"], dims=(1,))},
        outputs={output: OutputSpec(name=output, datatype=BY_NAME[datatype], dims=(1,))},
    )


def text_bench(backend: str = "text", *, decoupled: bool = False, **settings: Any) -> VertexBench:
    bench = VertexBench(**settings)

    def respond(request: InferenceRequest) -> InferenceResponse:
        bench.seen.append(request)
        given = request.inputs[0].data
        assert isinstance(given, np.ndarray)
        output = OutputTensor("text", "BYTES", (1,), given)
        if backend == "text":
            output = OutputTensor("embedding", "FP32", (1,), np.array([len(given[0])], np.float32))
        return InferenceResponse("simple", 1, [output], id=request.id)

    bench.engine.model_spec = partial(text_spec, backend, decoupled)  # type: ignore[method-assign]
    bench.engine.respond = respond
    return bench


CHAT = {"messages": [{"role": "user", "content": "cat"}]}


@pytest.mark.parametrize(
    ("backend", "decoupled", "body"),
    [
        ("text", False, {"inputs": "cat"}),
        ("text", False, {"inputs": ["a", "b"]}),
        ("text", False, {"text_inputs": ["cat"]}),
        ("text", False, {"instances": [{"inputs": "cat"}]}),
        ("text", False, b'{"inputs":"a"}\n{"inputs":["b"]}'),
        ("python", False, CHAT),
        ("python", False, {**CHAT, "n": 2}),
        ("python", True, CHAT),
        ("python", True, {**CHAT, "stream": True}),
        ("python", True, {"prompt": ["a", "b"]}),
        ("python", True, {"inputs": "cat"}),
        ("python", True, {"instances": ["a", {"prompt": "b"}]}),
    ],
)
def test_texts_reach_the_version_that_the_request_names(backend: str, decoupled: bool, body: Any) -> None:
    for route, version in (("/v2/models/simple/versions/1/infer", 1), ("/v2/models/simple/infer", -1)):
        bench = text_bench(backend, decoupled=decoupled, predict_route=route)
        answer = bench.predict(body, path=route)
        assert answer.status_code == 200, answer.text
        # Requests of a held version have the number of the hold.
        asked = {held for _, held in bench.engine.holds} or {each.model_version for each in bench.seen}
        assert asked == {version}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("backend", "text"), [("text", "inputs"), ("python", "prompt")])
def test_instances_of_texts_have_a_target_and_keys(backend: str, text: str, order: int) -> None:
    bench = text_bench(backend, decoupled=backend == "python")
    parameters = {"model": "simple", "version": "3", "id": "r7", "stream": False, "outputs": []}
    body = {"instances": [{text: "cat", "key": 5}, {"key": "b", text: "kitten"}], "parameters": parameters}
    answer = bench.predict(dict(list(body.items())[::order]))
    predictions = [[[3.0]], [[6.0]]] if backend == "text" else ["cat", "kitten"]
    assert (answer.status_code, answer.json) == (200, {"predictions": predictions})
    assert [(each.model_version, each.id) for each in bench.seen] == [(3, "r7")] * 2
    assert all("key" not in (each.parameters or {}) and "id" not in (each.parameters or {}) for each in bench.seen)
    bench.engine.respond = lambda request: InferenceResponse("simple", 3, [], error=BackendFailed("broken"))
    assert bench.predict(body).headers["Trident-Request-Id"] == "r7"
    answer = bench.predict({"instances": [{text: "cat"}], "parameters": {"id": 5}})
    assert (answer.status_code, "'parameters.id': expected a string" in answer.json["error"]) == (400, True)
    for name, value in (("stream", True), ("outputs", ["embedding"])):
        answer = bench.predict({"instances": [{text: "cat"}], "parameters": {name: value}})
        assert (answer.status_code, f"'parameters.{name}' is not supported" in answer.json["error"]) == (400, True)


def test_the_key_of_texts_is_the_member_of_the_option() -> None:
    bench = text_bench(key_field="row")
    assert bench.predict({"instances": [{"inputs": "cat", "row": 5}]}).json == {"predictions": [[[3.0]]]}
    answer = bench.predict({"instances": [{"inputs": "cat", "key": 5}]})
    assert (answer.status_code, "'key' is not supported by model 'simple'" in answer.json["error"]) == (400, True)


@pure_python_only
@pytest.mark.parametrize("content_type", [JSON, "text/plain"])
def test_large_texts_are_parsed_off_the_hub(content_type: str) -> None:
    bench, bridge_calls = text_bench(), []
    bridge: Any = bench.application.bridge
    run = bridge.run

    def noted(function: Any, *arguments: Any, **named: Any) -> Any:
        bridge_calls.append(function.__name__)
        return run(function, *arguments, **named)

    bridge.run = noted
    text = b"x" * 100_000
    answer = bench.predict(text if content_type == "text/plain" else b'{"inputs":"%b"}' % text, content_type)
    assert (answer.status_code, orjson.loads(answer.data)) == (200, [[100_000.0]])
    assert ("_plain_lines" if content_type == "text/plain" else "_documents") in bridge_calls
