"""Requests on the predict route: kinds of bodies, targets, limits and errors."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.unit.adapters.vertex.vertex_bench import V2, VertexBench
from tests.unit.core.http.streaming_engine import StreamingEngine, said
from trident.adapters.vertex.predict import (
    BINARY,
    DEFAULT_TARGET,
    Target,
    names_model,
    read_target,
    take_target,
    wants_stream,
)
from trident.adapters.vertex.settings import PayloadKind
from trident.core.errors import BackendFailed, InvalidRequest, QueueFull, ServerError
from trident.core.http.errors import HINT_HEADER, REQUEST_ID_HEADER
from trident.core.http.front_end import HttpOptions
from trident.core.http.long_json import SLICE
from trident.core.lifecycle.state import IndexEntry

JSON = "application/json"
EVENTS = "text/event-stream"
INSTANCES = b'{"instances":[[1,2]]}'
PREDICTION = {"predictions": [[1, 2]]}
OUTPUTS = [{"name": "OUT", "datatype": "INT32", "shape": [2], "data": [1, 2]}]
HEADER = json.dumps(
    {
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
    }
).encode()
TENSOR = struct.pack("<2i", 1, 2)


def kind_of(answer: Any) -> str:
    """The kind that the body was decoded as, judged by the answer."""
    assert answer.status_code == 200, answer.data
    return "v2" if "outputs" in answer.json else "instances"


# --- kinds of bodies


@pytest.mark.parametrize(
    "content_type", [JSON, "application/json; charset=utf-8", "text/plain", "x/y", "application/octet-stream", None]
)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (INSTANCES, "instances"),
        (b' \n{ "instances" : [[1,2]] }', "instances"),
        (b'{"parameters":{"a":1},"instances":[[1,2]]}', "instances"),
        (b'{"parameters":{"inputs":"x"},"instances":[[1,2]]}', "instances"),
        (V2, "v2"),
        (b'{"id":"instances",' + V2[1:], "v2"),
        (b'{"parameters":{"a":"\\"instances\\""},' + V2[1:], "v2"),
    ],
)
def test_the_body_decides_its_kind_under_any_type(body: bytes, kind: str, content_type: str | None) -> None:
    assert kind_of(VertexBench().post(body, content_type)) == kind


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
    answer = VertexBench(payload=PayloadKind(payload)).post(body, content_type)
    if answer.status_code == 200:
        assert kind_of(answer) == outcome
    else:
        assert (answer.status_code, list(answer.json)) == (400, ["error"])
        assert outcome in answer.json["error"]


@pytest.mark.parametrize("body", [b"{}", b"5", b"null", b'"instances"', b'{"input":[1]}', b'{"Instances":[1]}'])
def test_a_body_without_a_known_form_is_refused(body: bytes) -> None:
    answer = VertexBench().post(body)
    assert (answer.status_code, answer.mimetype) == (400, JSON)
    assert "{'instances': [...]}" in answer.json["error"]
    assert "'inputs'" in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{oops", "unexpected character, expected a string key at 1"),
        (b'{"instances"', "unexpected end of data at 12"),
        (b" ", "input data is empty at 0"),
        (b"\xff\xfe\x00", "str is not valid UTF-8 at 0"),
    ],
)
def test_malformed_json_is_refused_with_the_reason_and_the_place(body: bytes, reason: str) -> None:
    answer = VertexBench().post(body)
    assert (answer.status_code, answer.json) == (400, {"error": f"failed to parse the request JSON buffer: {reason}"})


def test_an_empty_body_is_refused() -> None:
    for content_type in (JSON, "text/csv", BINARY.of(0), None):
        answer = VertexBench().post(b"", content_type)
        assert (answer.status_code, answer.json) == (400, {"error": "the body is empty"})
        assert "instances" in answer.headers[HINT_HEADER]


@pytest.mark.parametrize(
    ("body", "content_type", "accept", "expected"),
    [
        (b"1,2\n", "text/csv", "text/csv", b"1,2\n"),
        (b"1,2\n", "text/csv", None, b'{"predictions":[[1,2]]}'),
        (b"[1,2]\n[3,4]\n", "application/jsonlines", "application/jsonlines", b"[1,2]\n[3,4]\n"),
        (TENSOR, "application/octet-stream", "text/csv", b"1,2\n"),
        (INSTANCES, JSON, "text/csv", b'{"predictions":[[1,2]]}'),
        (b"[[1,2],[3,4]]", JSON, "application/jsonlines", b"[1,2]\n[3,4]\n"),
    ],
)
def test_other_formats_are_decoded_and_encoded(
    body: bytes, content_type: str, accept: str | None, expected: bytes
) -> None:
    headers = {} if accept is None else {"Accept": accept}
    answer = VertexBench().post(body, content_type, **headers)
    assert (answer.status_code, answer.data) == (200, expected)


@pytest.mark.parametrize(
    ("content_type", "accept", "status", "text"),
    [
        ("image/png", "*/*", 415, "application/vnd.vertex-ai-triton.binary+json;json-header-size=N, application/json"),
        ("text/csv; charset=utf-16", "*/*", 415, "charset"),
        (";;;", "*/*", 400, "Content-Type"),
        ("text/csv", "image/png", 406, "text/csv"),
    ],
)
def test_unsupported_types_list_the_supported_ones(content_type: str, accept: str, status: int, text: str) -> None:
    answer = VertexBench().post(b"1,2\n", content_type, Accept=accept)
    assert (answer.status_code, answer.mimetype, list(answer.json)) == (status, JSON, ["error"])
    assert text in answer.json["error"]


# --- binary tensors


def test_binary_responses_have_the_v2_media_type() -> None:
    answer = VertexBench().post(HEADER + TENSOR, BINARY.of(len(HEADER)))
    assert (answer.status_code, answer.mimetype) == (200, "application/octet-stream")
    size = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.data[size:] == TENSOR
    assert json.loads(answer.data[:size])["outputs"][0]["parameters"] == {"binary_data_size": 8}


def test_a_json_length_of_0_means_raw_bytes_of_one_tensor() -> None:
    answer = VertexBench().post(TENSOR, BINARY.of(0))
    assert answer.data.endswith(TENSOR)


@pytest.mark.parametrize(
    "text", ["", "x", "1e3", "0x10", "٣".encode().decode("latin-1"), "5;a=b", " 5", "+5", "9" * 30, "5,5"]
)
def test_a_json_length_that_is_not_a_number_is_refused(text: str) -> None:
    answer = VertexBench().post(HEADER + TENSOR, f"{BINARY.prefix}{text}")
    assert answer.status_code == 400
    assert answer.json["error"].startswith(f"Content-Type must be '{BINARY.prefix}N'")


@pytest.mark.parametrize("size", [-1, -999999999, len(HEADER + TENSOR) + 1, 999999999])
def test_a_json_length_out_of_range_is_refused(size: int) -> None:
    answer = VertexBench().post(HEADER + TENSOR, BINARY.of(size))
    assert answer.status_code == 400
    assert f"got: {size}" in answer.json["error"]


def test_the_v2_length_header_is_ignored() -> None:
    bench = VertexBench()
    assert bench.post(HEADER + TENSOR, BINARY.of(len(HEADER)), Inference_Header_Content_Length="3").status_code == 200
    assert bench.post(INSTANCES, Inference_Header_Content_Length="3").json == PREDICTION
    assert bench.post(V2, Inference_Header_Content_Length="x").json["outputs"] == OUTPUTS
    assert bench.post(HEADER + TENSOR, JSON, Inference_Header_Content_Length=str(len(HEADER))).status_code == 400


# --- targets


def test_target_parameters_are_taken_and_others_are_passed_on() -> None:
    bench = VertexBench()
    parameters = {
        "model": "simple",
        "version": "1",
        "id": "r7",
        "outputs": ["OUT"],
        "priority": 2.0,
        "a": "b",
        "c": 1.5,
    }
    assert bench.post({"instances": [[1]], "parameters": parameters}).json == {"predictions": [[1]]}
    (request,) = bench.seen
    assert (request.model_name, request.model_version, request.id) == ("simple", 1, "r7")
    assert (request.outputs, request.priority, request.parameters) == (("OUT",), 2, {"a": "b", "c": 1.5})


def test_every_request_of_a_payload_has_the_same_target() -> None:
    bench = VertexBench()
    body = {"instances": [[1], [2], [3]], "parameters": {"version": 3, "id": "r7", "a": "b"}}
    assert bench.post(body).json == {"predictions": [[1], [2], [3]]}
    assert bench.engine.holds == [("simple", 3)]
    assert {(each.model_version, each.id, str(each.parameters)) for each in bench.seen} == {(-2, "r7", "{'a': 'b'}")}


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"model": "absent"}, 404),
        ({"version": 2}, 404),
        ({"model": 5}, 400),
        ({"version": "x"}, 400),
        ({"outputs": 5}, 400),
        (5, 400),
        ([], 400),
    ],
)
def test_invalid_targets_are_refused(parameters: Any, status: int) -> None:
    bench = VertexBench()
    answer = bench.post({"instances": [[1]], "parameters": parameters})
    assert (answer.status_code, list(answer.json)) == (status, ["error"])
    assert bench.seen == []


def test_parameters_are_optional() -> None:
    for parameters in (None, {}):
        assert VertexBench().post({"instances": [[1]], "parameters": parameters}).json == {"predictions": [[1]]}


def test_several_models_without_a_default_are_refused() -> None:
    bench = VertexBench()
    bench.engine.repository_index = lambda ready_only: [IndexEntry(name=name) for name in ("b", "simple")]  # type: ignore[method-assign]
    answer = bench.post(INSTANCES)
    assert (answer.status_code, answer.json) == (400, {"error": "there are several models: b, simple"})
    assert "--vertex-ai-default-model" in answer.headers[HINT_HEADER]
    assert "'parameters.model'" in answer.headers[HINT_HEADER]
    assert bench.post({"instances": [[1]], "parameters": {"model": "simple"}}).status_code == 200
    assert bench.post(V2).status_code == 400


def test_a_version_in_the_predict_route_is_used() -> None:
    path = "/v2/models/simple/versions/1/infer"
    bench = VertexBench(predict_route=path)
    for body in (INSTANCES, V2):
        assert bench.post(body, path=path).status_code == 200
    assert bench.post({"instances": [[1]], "parameters": {"version": 3}}, path=path).status_code == 200
    assert bench.post({"instances": [[1]], "parameters": {"model": "simple"}}, path=path).status_code == 200
    assert [each.model_version for each in bench.seen] == [1, 1, 3, -1]


# --- instances


@pytest.mark.parametrize(
    ("key_field", "instance", "status"),
    [
        ("key", {"IN": [1], "key": 7}, 200),
        ("key", {"IN": [1], "id": 7}, 400),
        ("id", {"IN": [1], "id": {"a": 1}}, 200),
        ("id", {"IN": [1], "key": 7}, 400),
        ("", {"IN": [1], "key": 7}, 400),
        ("IN", {"IN": [1]}, 200),
    ],
)
def test_the_key_field_is_not_an_input(key_field: str, instance: dict[str, Any], status: int) -> None:
    answer = VertexBench(key_field=key_field).post({"instances": [instance]})
    assert answer.status_code == status
    if status == 400:
        assert "instance 0: '" in answer.json["error"]


def test_one_invalid_instance_stops_the_whole_request() -> None:
    bench = VertexBench()
    answer = bench.post({"instances": [[1], [2], ["x"], [4]]})
    assert (answer.status_code, list(answer.json)) == (400, ["error"])
    assert answer.json["error"].startswith("instance 2, input 'IN', element [0]: expected an integer")
    assert bench.seen == []


@pytest.mark.parametrize(
    ("error", "status"), [(InvalidRequest("no"), 400), (QueueFull("no"), 503), (BackendFailed("no"), 500)]
)
def test_one_failed_instance_fails_the_whole_request(error: ServerError, status: int) -> None:
    bench = VertexBench()
    answered = bench._respond

    def respond(request: Any) -> Any:
        bench.error = error if len(bench.seen) == 2 else None
        return answered(request)

    bench.engine.respond = respond
    answer = bench.post({"instances": [[1], [2], [3], [4]], "parameters": {"id": "r7"}})
    assert (answer.status_code, answer.json) == (status, {"error": "no"})
    assert answer.headers[REQUEST_ID_HEADER] == "r7"


# --- streams


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("text/event-stream", True),
        ("text/event-stream, application/json", True),
        ("application/json, text/event-stream", False),
        ("application/json;q=0.5, text/event-stream", True),
        ("*/*, text/event-stream;q=0", False),
        ("text/event-stream;q=0.1, */*", False),
    ],
)
def test_accept_shows_whether_the_client_wants_a_stream(accept: str | None, wanted: bool) -> None:
    assert wants_stream(accept) is wanted


@pytest.mark.parametrize(
    ("body", "accept"),
    [(INSTANCES, EVENTS), ({"instances": [[1, 2]], "parameters": {"stream": True}}, None), ([[1, 2]], EVENTS)],
)
def test_a_stream_has_the_predictions_of_each_response(body: Any, accept: str | None) -> None:
    bench = VertexBench()
    answer = bench.post(body, **({"Accept": accept} if accept else {}))
    assert (answer.status_code, answer.content_type) == (200, f"{EVENTS}; charset=utf-8")
    predicted = PREDICTION if body != [[1, 2]] else [[1, 2]]
    assert answer.data == b"data: %b\n\n" % orjson.dumps(predicted)
    bench.error = BackendFailed("broken")
    answer = bench.post(body, **({"Accept": accept} if accept else {}))
    assert (answer.status_code, answer.data) == (500, b'data: {"error":"broken"}\n\n')


def test_a_stream_is_the_answer_to_one_request() -> None:
    bench = VertexBench()
    answer = bench.post({"instances": [[1], [2]]}, Accept=EVENTS)
    assert (answer.status_code, "2 instances are several" in answer.json["error"]) == (400, True)
    answer = bench.post(V2, Accept=EVENTS)
    assert (answer.status_code, answer.mimetype) == (501, JSON)
    assert "'instances'" in answer.headers[HINT_HEADER]
    assert bench.seen == []
    assert bench.post({"instances": [[1]], "parameters": {"stream": "no"}}).status_code == 400


def test_a_stream_that_takes_too_long_ends_with_an_error() -> None:
    bench = VertexBench(timeout_s=0.05)
    bench.engine = bench.application.engine = StreamingEngine(lambda request: [said("a")])
    answer = bench.post({"instances": [[1]], "parameters": {"model": "simple"}}, Accept=EVENTS)
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
    answer = VertexBench(payload=PayloadKind(payload)).post(body)
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
def test_accept_or_stream_asks_generate_for_events(body: Any, accept: str, is_stream: bool) -> None:
    answer = VertexBench().post(body, Accept=accept)
    assert answer.status_code == 200
    assert (answer.content_type == f"{EVENTS}; charset=utf-8", answer.data.startswith(b"data: ")) == (is_stream,) * 2


def test_a_redirect_reaches_generate() -> None:
    bench = VertexBench(max_response_size=60)
    assert bench.redirect("v2/models/simple/generate", b'{"IN": [1, 2]}').json == OBJECT
    answer = bench.redirect("v2/models/simple/versions/1/generate_stream", b'{"IN": [1, 2]}')
    assert (answer.status_code, answer.content_type) == (400, JSON)  # an event of 64 bytes


# --- limits


def test_a_request_over_the_limit_is_not_run() -> None:
    bench = VertexBench(max_request_size=len(INSTANCES))
    assert bench.post(INSTANCES).status_code == 200
    for headers, body in (({}, INSTANCES + b" "), ({"Content_Encoding": "gzip"}, gzip.compress(INSTANCES + b" "))):
        answer = bench.post(body, **headers)
        assert (answer.status_code, list(answer.json)) == (400, ["error"])
        assert f"the request has {len(INSTANCES) + 1} bytes" in answer.json["error"]
    assert len(bench.seen) == 1


@pytest.mark.parametrize("body", [INSTANCES, V2])
def test_a_response_over_the_limit_is_an_error(body: bytes) -> None:
    bench = VertexBench()
    size = len(bench.post(body).data)
    assert VertexBench(max_response_size=size).post(body).status_code == 200
    answer = VertexBench(max_response_size=size - 1).post(body)
    assert (answer.status_code, answer.json) == (
        400,
        {"error": f"the response has {size} bytes, at most {size - 1} are allowed"},
    )


@pytest.mark.parametrize("body", [INSTANCES, V2, b'{"instances":[[1],[2],[3]]}'])
def test_a_late_response_is_an_error_and_cancels_the_request(body: bytes) -> None:
    bench = VertexBench(timeout_s=0.05)
    bench.engine.respond = lambda request: None
    answer = bench.post(body)
    assert (answer.status_code, answer.json) == (503, {"error": "there was no answer within 0.05 seconds"})
    assert bench.engine.calls
    assert set(bench.engine.calls) == {("cancel", "simple")}
    assert not bench.engine._pending


def test_the_servers_own_limit_applies_too() -> None:
    bench = VertexBench(HttpOptions(max_input_size=len(INSTANCES) - 1))
    answer = bench.post(INSTANCES)
    assert answer.status_code == 400
    assert "--http-max-input-size" in answer.json["error"]


# --- compression


def test_npy_for_several_outputs_is_refused_before_the_model_runs() -> None:
    bench = VertexBench()
    spec = bench.engine.model_spec("simple")
    two = replace(spec, outputs={**spec.outputs, "MORE": replace(spec.outputs["OUT"], name="MORE")})
    bench.engine.model_spec = lambda name, version=-1: two  # type: ignore[method-assign]
    answer = bench.post(b"1,2\n", "text/csv", Accept="application/x-npy")
    assert (answer.status_code, bench.seen) == (406, [])


def test_bodies_may_be_compressed_both_ways() -> None:
    answer = VertexBench().post(gzip.compress(INSTANCES), Content_Encoding="gzip", Accept_Encoding="gzip")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.data)) == PREDICTION
    refused = VertexBench().post(INSTANCES, Content_Encoding="br")
    assert (refused.status_code, list(refused.json)) == (415, ["error"])


# --- the model, version and outputs that a document names


def test_the_targets_members_leave_the_parameters() -> None:
    parameters = {"model": "cat", "version": 2, "outputs": ["B", "A", "B"], "id": "7", "stream": True, "other": 1.5}
    assert take_target(parameters) == Target("cat", 2, ("B", "A"), "7", True)
    assert parameters == {"other": 1.5}
    assert take_target({}) == DEFAULT_TARGET


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"model": ""}, Target()),
        ({"outputs": "A"}, Target(outputs=("A",))),
        ({"outputs": []}, Target()),
        ({"version": -1}, Target()),
        ({"version": 0}, Target(version=0)),
        ({"version": "007"}, Target(version=7)),
        ({"version": 3.0}, Target(version=3)),
        ({"version": 2**63 - 1}, Target(version=2**63 - 1)),
        ({"stream": False}, Target()),
    ],
)
def test_valid_members_give_a_target(given: dict[str, Any], target: Target) -> None:
    assert take_target(given) == target


@pytest.mark.parametrize("value", [None, True, 5, 1.5, [], {}, ["a"], {"a": "b"}])
@pytest.mark.parametrize(("name", "expected"), [("model", "the name of a model"), ("id", "a string")])
def test_members_that_are_not_strings_are_refused(name: str, expected: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=rf"^'parameters\.{name}': expected {expected}, got "):
        take_target({name: value})


@pytest.mark.parametrize(
    "value", [None, True, 1.5, float("nan"), -2, 2**63, "", "-1", "x", "1.0", "٣", "9" * 50, [], {}]
)
def test_invalid_versions_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^'parameters\.version': expected the number of a version, got "):
        take_target({"version": value})


@pytest.mark.parametrize("value", [None, True, 1, {}, [1], ["A", None], [["A"]]])
def test_invalid_outputs_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^'parameters\.outputs': expected a list of names of outputs, got "):
        take_target({"outputs": value})


@pytest.mark.parametrize("value", [None, 0, 1, "true", [], {}])
def test_an_invalid_stream_flag_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^'parameters\.stream': expected true or false, got "):
        take_target({"stream": value})


def test_doubles_are_accepted_for_whole_numbers() -> None:
    parameters: dict[str, Any] = {
        "priority": 1.0,
        "timeout": 5e6,
        "sequence_id": 42.0,
        "other": 1.0,
        "sequence_start": True,
    }
    take_target(parameters)
    assert json.dumps(parameters) == json.dumps(
        {"priority": 1, "timeout": 5000000, "sequence_id": 42, "other": 1.0, "sequence_start": True}
    )
    parameters = {"priority": 1.5, "timeout": "x", "sequence_id": "a"}
    take_target(parameters)
    assert parameters == {"priority": 1.5, "timeout": "x", "sequence_id": "a"}


NAMING = [
    b'{"instances":[1],"parameters":{"model":"m"}}',
    b'{"parameters" : {"a":1,"version"\n:2},"instances":[1]}',
    b'{"instances":[1],"parameters":{"m\\u006fdel":"m"}}',
    b'{"instances":[1],"p\\u0061rameters":{"model":"m"}}',
    b'{"instances":[1],"parameters":{"\\u0076ersion":2}}',
]


@pytest.mark.parametrize("body", NAMING)
def test_a_document_that_names_a_model_is_found(body: bytes) -> None:
    assert names_model(body)
    assert names_model(memoryview(body))
    assert read_target(body) != DEFAULT_TARGET


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"instances":[[1,2]]}',
        b'{"instances":[1],"parameters":{"a":1}}',
        b'{"instances":[{"model":"x"}]}',
        b"\xff\xfe",
    ],
)
def test_a_document_that_names_no_model_is_skipped(body: bytes) -> None:
    assert not names_model(body)


@pytest.mark.parametrize(
    "body", [b"5", b"[]", b"{}", b'{"parameters":null}', b'{"parameters":[1]}', b'{"parameters":"model"}']
)
def test_a_document_without_parameters_has_the_default_target(body: bytes) -> None:
    assert read_target(body) == DEFAULT_TARGET


def test_malformed_json_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="failed to parse"):
        read_target(b'{"parameters":{"model":')


@pytest.mark.parametrize("before", range(SLICE - 20, SLICE + 2, 3))
def test_a_long_document_names_its_model(before: int) -> None:
    text = '{"instances":["' + "x" * before + '","' + "y" * SLICE + '"],"parameters":{"model":"cat"}}'
    body = text.encode()
    assert names_model(body)
    assert read_target(body) == Target("cat")
    assert not names_model(body.replace(b"model", b"other"))
    with pytest.raises(InvalidRequest, match="failed to parse"):
        read_target(body[:-1])
