"""Paths and methods against the route table, through the application that uses it."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from tests.unit.shared_memory_object import shared_memory_object
from trident.core.config.autocomplete import auto_complete, fill_identity, normalize
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.schema import ModelConfig
from trident.core.engine.protocol import ConfigMessage
from trident.core.errors import ModelNotReady
from trident.core.frontend.access import GROUPS
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import model_config_json
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.routes import ROUTES
from trident.core.lifecycle.state import Phase, ServingPhase

BAD_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(), ThreadBridge()))


def test_route_names_are_unique_and_groups_are_known() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert {route.group for route in ROUTES} == set(GROUPS)


@pytest.mark.parametrize(
    ("path", "methods", "mime"),
    [
        ("/v2", "GET", "application/json"),
        ("/v2/models/simple", "GET", "application/json"),
        ("/v2/models/simple/config", "GET", "application/json"),
        ("/v2/models/simple/stats", "GET", "application/json"),
        ("/v2/models/stats", "GET", "application/json"),
        ("/v2/models/simple/infer", "POST", "text/plain"),
        ("/v2/models/simple/versions/1/infer", "POST", "text/plain"),
        ("/v2/models/simple/generate", "POST", "application/json"),
        ("/v2/models/simple/versions/1/generate_stream", "POST", "application/json"),
        ("/v2/models/simple/ready", "GET", "text/plain"),
        ("/v2/health/live", "GET", "text/plain"),
        ("/v2/health/ready", "GET", "text/plain"),
        ("/v2/repository/index", "POST", "application/json"),
        ("/v2/repository/models/simple/load", "POST", "application/json"),
        ("/v2/systemsharedmemory/status", "GET", "application/json"),
        ("/v2/trace/setting", "GET POST", "application/json"),
        ("/v2/logging", "GET POST", "application/json"),
    ],
)
def test_other_methods_are_405(client: Client, path: str, methods: str, mime: str) -> None:
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "BREW"} - set(methods.split()):
        answer = client.open(path, method=method)
        assert (answer.status_code, answer.content_type) == (405, mime), method
        assert answer.data == (b"" if method == "HEAD" else b'{"error":"Method Not Allowed"}')
        assert answer.headers["Allow"] == ", ".join(methods.split())


def test_names_and_paths_are_taken_as_they_are(client: Client) -> None:
    assert list(client.get("/v2/models/stats").get_json()) == ["model_stats"]
    assert client.get("/v2/models/stats/config").status_code == 404
    assert client.get("/v2/models/a%2Fb").get_json()["name"] == "a%2Fb"
    answer = client.get("/v2/models/%00")
    assert answer.json == {"error": "Request for unknown model: '%00' is not found"}
    assert client.get("/v2/health/live", headers={"Host": "[::1"}).status_code == 200


# --- health


def test_a_ready_server_reports_the_loads_that_failed(client: Client, engine: FakeEngine) -> None:
    failures = {"simple": "version 2 is READY; version 3 is UNAVAILABLE: Internal: no such file"}
    engine.serving = ServingPhase(name=Phase.READY, done=1, total=1, failures=failures)
    answer = client.get("/v2/health/ready")
    assert (answer.status_code, answer.content_type, answer.data) == (200, "text/plain", b"")
    assert answer.headers["Trident-Failures"] == f"simple: {failures['simple']}"
    answer = client.get("/v2/health/ready?verbose")
    assert (answer.status_code, answer.content_type) == (200, "application/json")
    assert answer.json == {"ready": True, "phase": "ready", "loaded": 1, "total": 1, "failures": failures}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/simple/ready", {"name": "simple", "ready": True}),
    ],
)
def test_the_body_can_be_json(engine: FakeEngine, path: str, body: object) -> None:
    client = Client(V2Application(engine, HttpOptions(health_json=True), ThreadBridge()))
    answer = client.get(path)
    assert (answer.status_code, answer.json) == (200, body)


def test_a_server_that_is_not_live_is_400_and_empty(client: Client, engine: FakeEngine) -> None:
    engine.live = False
    answer = client.get("/v2/health/live")
    assert (answer.status_code, answer.data) == (400, b"")


def test_an_unready_server_reports_its_progress(client: Client, engine: FakeEngine) -> None:
    engine.ready = False
    engine.serving = ServingPhase(name=Phase.LOADING, model="simple", done=3, total=7)
    answer = client.get("/v2/health/ready")
    assert (answer.status_code, answer.content_type) == (400, "application/json")
    assert answer.json == {"phase": "loading", "model": "simple", "loaded": 3, "total": 7}


def test_an_unready_server_reports_failures(client: Client, engine: FakeEngine) -> None:
    engine.ready = False
    engine.serving = ServingPhase(name=Phase.FAILED, done=1, total=2, failures={"broken": "Internal: no such file"})
    assert client.get("/v2/health/ready").json == {
        "phase": "failed",
        "loaded": 1,
        "total": 2,
        "failures": {"broken": "Internal: no such file"},
    }


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_an_exiting_server_is_503(client: Client, engine: FakeEngine, path: str) -> None:
    engine.serving = ServingPhase(name=Phase.EXITING)
    answer = client.get(path)
    assert (answer.status_code, answer.data) == (503, b'{"error":"Server exiting"}')
    assert answer.content_type == "text/plain"


def test_a_loaded_model_that_cannot_serve_is_400(client: Client, engine: FakeEngine) -> None:
    engine.model_ready = False
    answer = client.get("/v2/models/simple/versions/1/ready")
    assert (answer.status_code, answer.content_type) == (400, "text/plain")
    assert answer.data == b'{"error":"Model version not ready"}'


# --- metadata


@pytest.mark.parametrize(
    ("path", "chosen"),
    [
        ("/v2", {"name": "triton", "version": "2"}),
        ("/v2/models/simple", {"name": "simple", "versions": ["3"]}),
        ("/v2/models/simple/versions/1", {"name": "simple", "versions": ["1"]}),
        ("/v2/models/simple/config", {"name": "simple", "max_batch_size": 3}),
        ("/v2/models/simple/versions/1/config", {"name": "simple", "max_batch_size": 1}),
    ],
)
def test_metadata_routes_ask_for_their_model_and_version(client: Client, path: str, chosen: dict[str, object]) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.content_type) == (200, "application/json")
    assert answer.json is not None
    assert answer.json | chosen == answer.json
    assert b" " not in answer.data


@pytest.mark.parametrize("tail", ["", "/config"])
def test_lookup_errors_are_json(client: Client, tail: str) -> None:
    answer = client.get(f"/v2/models/nope{tail}")
    assert (answer.status_code, answer.content_type) == (404, "application/json")
    assert answer.data == b'{"error":"Request for unknown model: \'nope\' is not found"}'


def test_invalid_versions_are_refused(client: Client) -> None:
    answer = client.get("/v2/models/simple/versions/99999999999999999999")
    assert answer.status_code == 400
    assert b"(details: stol), version should be an integral value > 0" in answer.data


# --- repository


@pytest.fixture
def limited(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(max_input_size=1000), ThreadBridge()))


@pytest.mark.parametrize("text", ["AAEC", "AA\nEC\n", "A\r\nAEC"])
def test_base64_may_be_broken_into_lines(limited: Client, engine: FakeEngine, text: str) -> None:
    parameters = {"config": "{}", "file:1/model.onnx": text}
    assert limited.post("/v2/repository/models/simple/load", json={"parameters": parameters}).status_code == 200
    assert engine.calls[0][2]["file:1/model.onnx"] == b"\x00\x01\x02"


@pytest.mark.parametrize("action", ["load", "unload"])
def test_the_engine_decides_whether_loading_is_allowed(limited: Client, engine: FakeEngine, action: str) -> None:
    text = "explicit model load / unload is not allowed if polling is enabled"
    engine.refusal = ModelNotReady(text)
    answer = limited.post(f"/v2/repository/models/simple/{action}")
    assert (answer.status_code, answer.content_type, answer.json) == (503, "application/json", {"error": text})


# --- trace settings


START = (
    b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"",'
    b'"trace_mode":"triton"}'
)


@pytest.mark.parametrize(("path", "model"), [("/v2/trace/setting", ""), ("/v2/models/simple/trace/setting", "simple")])
def test_settings_are_changed_by_the_engine(client: Client, engine: FakeEngine, path: str, model: str) -> None:
    answer = client.post(path, json={"trace_rate": "5", "trace_count": None, "trace_level": ["unknown"]})
    assert engine.calls == [("change_trace", model, {"trace_rate": 5, "trace_count": None})]
    assert (answer.status_code, answer.json["trace_rate"]) == (200, "5")  # type: ignore[index]
    assert client.get("/v2/trace/setting").json["trace_rate"] == ("1000" if model else "5")  # type: ignore[index]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"trace_rate": 5}, 400, "Unable to parse 'trace_rate': attempt to access JSON non-string as string"),
        ({"trace_count": ["1"]}, 400, "Unable to parse 'trace_count': attempt to access JSON non-string as string"),
        ({"trace_level": "OFF"}, 400, "Unable to parse 'trace_level': attempt to access JSON non-array as array"),
        ({"trace_level": [1]}, 400, "Unable to parse 'trace_level': attempt to access JSON non-string as string"),
        ({"trace_count": "-2"}, 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        ({"trace_file": None}, 501, "trace file location can not be updated through network protocol"),
        (
            {"trace_level": ["TIMESTAMPS"]},
            400,
            "Attempting to set invalid trace setting :trace file name is not given",
        ),
        ([], 400, "attempt to access JSON non-object as object"),
    ],
)
def test_invalid_changes_change_nothing(client: Client, body: Any, status: int, text: str) -> None:
    answer = client.post("/v2/trace/setting", json=body)
    assert (answer.status_code, answer.get_json()["error"]) == (status, text)
    assert client.get("/v2/trace/setting").data == START


def test_settings_of_an_unknown_model_are_refused(client: Client, engine: FakeEngine) -> None:
    answer = client.get("/v2/models/nope/trace/setting")
    assert (answer.status_code, answer.json) == (400, {"error": "Request for unknown model : nope"})
    engine.model_ready = False
    answer = client.post("/v2/models/simple/trace/setting", json={"trace_rate": "1"})
    assert (answer.status_code, answer.json) == (400, {"error": "Request for unknown model : simple"})
    assert engine.calls == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.sampled_from(["0", "1", "-1", "-2", "99999999999", " 7x", "", "OFF", "TIMESTAMPS", "TENSORS", "\ud800"])
NAMES = st.sampled_from(["trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode", "x"])


@pytest.mark.slow
@given(document=st.dictionaries(NAMES, JSON | TEXTS | st.lists(TEXTS, max_size=3), max_size=6) | JSON)
def test_no_settings_of_any_type_are_an_error_of_the_server(document: Any) -> None:
    client = Client(V2Application(FakeEngine(), HttpOptions(), ThreadBridge()))
    for path in ("/v2/trace/setting", "/v2/models/simple/trace/setting"):
        answer = client.post(path, json=document)
        assert answer.status_code in (200, 400, 501)
        assert answer.get_json().get("error") != ""
        shown = client.get(path).get_json()
        assert list(shown) == list(orjson.loads(START))
        assert all(isinstance(value, list if name == "trace_level" else str) for name, value in shown.items())


# --- shared memory


NON_STRING = "attempt to access JSON non-string as string"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
HANDLE = b64encode(bytes(64)).decode()


@pytest.fixture
def memory_client(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(allow_client_shm=True), ThreadBridge()))


@pytest.fixture
def key() -> Iterator[str]:
    with shared_memory_object(os.sysconf("SC_PAGE_SIZE")) as found:
        yield found


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Shared memory register request has no 'key' field"),
        ({}, "Shared memory register request has no 'key' field"),
        ({"key": "/k"}, "Shared memory register request has no 'byte_size' field"),
        ({"key": 1, "byte_size": 1}, NON_STRING),
        ({"key": None, "byte_size": 1}, NON_STRING),
        ({"key": "/k", "byte_size": "1"}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": -1}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": True}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": 1.5}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": 1, "offset": []}, NON_UNSIGNED),
        ([], "attempt to access JSON non-object as object"),
    ],
)
def test_a_wrong_body_is_refused(memory_client: Client, body: Any, text: str) -> None:
    given = {"data": body} if type(body) is bytes else {"json": body}
    answer = memory_client.post("/v2/systemsharedmemory/region/r/register", **given)
    assert (answer.status_code, answer.get_json()["error"]) == (400, text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": {}}, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": HANDLE}}, "attempt to access non-existing object member 'byte_size'"),
        ({"raw_handle": {"b64": HANDLE}, "byte_size": 1}, "attempt to access non-existing object member 'device_id'"),
        ({"raw_handle": HANDLE}, "attempt to access JSON non-object as object"),
        ({"raw_handle": {"b64": 1}}, NON_STRING),
        ({"raw_handle": {"b64": ""}}, BAD_HANDLE),
        ({"raw_handle": {"b64": "A"}}, BAD_HANDLE),
        ({"raw_handle": {"b64": "größer"}}, BAD_HANDLE),
        ({"raw_handle": {"b64": b64encode(bytes(63)).decode()}}, BAD_HANDLE),
        ({"raw_handle": {"b64": HANDLE}, "byte_size": -1, "device_id": 0}, NON_UNSIGNED),
    ],
)
def test_a_wrong_handle_is_refused(memory_client: Client, body: Any, text: str) -> None:
    answer = memory_client.post("/v2/cudasharedmemory/region/r/register", json=body)
    assert (answer.status_code, answer.get_json()["error"]) == (400, text)


def test_a_handle_reaches_the_engine(memory_client: Client, engine: FakeEngine) -> None:
    text = HANDLE[:10] + "\n !" + HANDLE[10:]
    body = {"raw_handle": {"b64": text}, "byte_size": 8, "device_id": 1}
    assert memory_client.post("/v2/cudasharedmemory/region/r/register", json=body).status_code == 200
    assert engine.calls == [("register_cuda", "r", bytes(64), 1, 8)]


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_a_region_needs_a_name(memory_client: Client, kind: str) -> None:
    answer = memory_client.post(f"/v2/{kind}sharedmemory/register", json={})
    text = f"'region name' is necessary to register {kind} shared memory region"
    assert (answer.status_code, answer.get_json()["error"]) == (400, text)


# --- metadata


# --- repository index


# --- the config API's JSON, against what Triton 2.51 answered for the same models, text for text


SIMPLE = (
    '{"name":"simple","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"",'
    '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,"input":[{"name":"INPUT0",'
    '"data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false},{"name":"INPUT1",'
    '"data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],'
    '"output":[{"name":"OUTPUT0","data_type":"TYPE_INT32","dims":[16],"label_filename":"",'
    '"is_shape_tensor":false,"is_non_linear_format_io":false},{"name":"OUTPUT1","data_type":"TYPE_INT32",'
    '"dims":[16],"label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}],'
    '"batch_input":[],"batch_output":[],"optimization":{"priority":"PRIORITY_DEFAULT",'
    '"input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},'
    '"gather_kernel_buffer_threshold":0,"eager_batching":false},'
    '"dynamic_batching":{"preferred_batch_size":[8],"max_queue_delay_microseconds":0,'
    '"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},'
    '"instance_group":[{"name":"simple_0","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],'
    '"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.onnx",'
    '"cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
)
AUTO_NOBATCH = (
    '{"name":"auto_nobatch","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"",'
    '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":0,"input":[{"name":"IN",'
    '"data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[2,4],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUT",'
    '"data_type":"TYPE_FP32","dims":[2,4],"label_filename":"","is_shape_tensor":false,'
    '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
    '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},'
    '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},'
    '"instance_group":[{"name":"auto_nobatch","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],'
    '"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.onnx",'
    '"cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
)
CLS_OVERRIDDEN = (
    '{"name":"cls","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"",'
    '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":2,"input":[{"name":"IN",'
    '"data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUT",'
    '"data_type":"TYPE_FP32","dims":[4],"label_filename":"","is_shape_tensor":false,'
    '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
    '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},'
    '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},'
    '"dynamic_batching":{"preferred_batch_size":[2],"max_queue_delay_microseconds":0,'
    '"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},'
    '"instance_group":[{"name":"cls","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],'
    '"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.onnx",'
    '"cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
)


def rendered(name: str, text: str, signature: ModelSignature | None = None) -> str:
    """The JSON text of a model on a machine without GPUs, printed as Triton prints it."""
    config = text_format.Parse(text, ModelConfig())
    fill_identity(config, name, ["model.onnx"])
    normalize(config, ())
    if signature is not None:
        auto_complete(config, signature, 4)
        normalize(config, ())
    return json.dumps(model_config_json(ConfigMessage.of(config)), separators=(",", ":"))


def fp32(in_shape: tuple[int, ...]) -> ModelSignature:
    return ModelSignature((TensorSignature("IN", "FP32", in_shape),), (TensorSignature("OUT", "FP32", in_shape),))


def test_a_config_is_printed_as_by_triton() -> None:
    text = 'name: "simple" backend: "onnxruntime" max_batch_size: 8 dynamic_batching {} '
    text += "instance_group [ { kind: KIND_CPU count: 1 } ] "
    for side in ("input", "output"):
        for number in (0, 1):
            text += f'{side} {{ name: "{side.upper()}{number}" data_type: TYPE_INT32 dims: [ 16 ] }} '
    assert rendered("simple", text) == SIMPLE
    assert rendered("auto_nobatch", "", fp32((2, 4))) == AUTO_NOBATCH
    assert rendered("cls", 'backend: "onnxruntime" max_batch_size: 2', fp32((-1, 4))) == CLS_OVERRIDDEN


def test_the_integers_that_triton_prints_as_strings() -> None:
    config = text_format.Parse(
        "input { dims: [ 9007199254740993 ] } sequence_batching { state { dims: 2 initial_state { dims: 3 } } } "
        'optimization { cuda { graph_spec { input { key: "x" value { dim: 4 } } } } } '
        "instance_group { secondary_devices { device_id: 5 } }",
        ModelConfig(),
    )
    printed = model_config_json(ConfigMessage.of(config))
    assert printed["input"][0]["dims"] == [9007199254740993]
    state = printed["sequence_batching"]["state"][0]
    assert (state["dims"], state["initial_state"][0]["dims"]) == ([2], ["3"])
    assert printed["optimization"]["cuda"]["graph_spec"][0]["input"] == {"x": {"dim": ["4"]}}
    assert printed["instance_group"][0]["secondary_devices"][0]["device_id"] == "5"


def test_maps_floats_and_chosen_fields() -> None:
    config = text_format.Parse(
        "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 3 } } } "
        'parameters { key: "b" value { string_value: "1" } } parameters { key: "a" value {} } '
        'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { dims: 4 zero_data: true } } } '
        "model_metrics { metric_control { histogram_options { buckets: [ 0.5, inf ] } } } "
        "input { data_type: 77 }",
        ModelConfig(),
    )
    printed = model_config_json(ConfigMessage.of(config))
    assert printed["dynamic_batching"]["priority_queue_policy"] == {
        "2": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": False,
            "max_queue_size": 3,
        }
    }
    assert printed["parameters"] == {"a": {"string_value": ""}, "b": {"string_value": "1"}}
    warmup = {"data_type": "TYPE_INVALID", "dims": [4], "zero_data": True}
    assert printed["model_warmup"][0]["inputs"] == {"IN": warmup}
    assert printed["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"] == [0.5, "Infinity"]
    assert printed["input"][0]["data_type"] == 77


def test_a_float32_is_printed_in_the_digits_it_has() -> None:
    config = text_format.Parse("sequence_batching { direct { minimum_slot_utilization: 0.1 } }", ModelConfig())
    assert model_config_json(ConfigMessage.of(config))["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1
