"""Paths and methods against the route table, through the application that uses it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from google.protobuf import text_format
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.core.config.schema import ModelConfig
from trident.core.engine.protocol import ConfigMessage
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


def test_names_and_paths_are_decoded_literally(client: Client) -> None:
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


def test_an_unready_server_reports_its_progress(client: Client, engine: FakeEngine) -> None:
    engine.ready = False
    engine.serving = ServingPhase(name=Phase.LOADING, model="simple", done=3, total=7)
    answer = client.get("/v2/health/ready")
    assert (answer.status_code, answer.content_type) == (400, "application/json")
    assert answer.json == {"phase": "loading", "model": "simple", "loaded": 3, "total": 7}


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


# --- repository


@pytest.mark.parametrize("text", ["AAEC", "AA\nEC\n", "A\r\nAEC"])
def test_base64_may_be_broken_into_lines(client: Client, engine: FakeEngine, text: str) -> None:
    parameters = {"config": "{}", "file:1/model.onnx": text}
    assert client.post("/v2/repository/models/simple/load", json={"parameters": parameters}).status_code == 200
    assert engine.calls[0][2]["file:1/model.onnx"] == b"\x00\x01\x02"


# --- trace settings


@pytest.mark.parametrize("path", ["trace/setting", "logging", "systemsharedmemory/region/r/register"])
def test_change_without_a_body_is_refused_as_in_triton(memory_client: Client, path: str) -> None:
    answer = memory_client.post(f"/v2/{path}")
    assert answer.status_code == 400
    assert answer.get_json()["error"].startswith("failed to parse the request JSON buffer: ")


# --- models that a request does not name


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/embed"])
def test_model_unloaded_during_the_lookup_is_skipped(client: Client, engine: FakeEngine, path: str) -> None:
    engine.versions.clear()  # the index has it still
    answer = client.post(path, json={"messages": [], "inputs": "a"})
    assert answer.status_code == 400
    assert "unknown model" not in answer.get_data(as_text=True)


# --- shared memory


NON_STRING = "attempt to access JSON non-string as string"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
HANDLE = b64encode(bytes(64)).decode()


@pytest.fixture
def memory_client(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(allow_client_shm=True), ThreadBridge()))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": {}}, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": HANDLE}}, "attempt to access non-existing object member 'byte_size'"),
        ({"raw_handle": {"b64": HANDLE}, "byte_size": 1}, "attempt to access non-existing object member 'devi"),
        ({"raw_handle": HANDLE}, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": 1}}, NON_STRING),
        ({"raw_handle": {"b64": "AAAA"}}, "attempt to access non-existing object member 'byte_size'"),
        ({"raw_handle": {"b64": b64encode(bytes(63)).decode()}, "byte_size": 1, "device_id": 0}, BAD_HANDLE),
        ({"raw_handle": {"b64": HANDLE}, "byte_size": -1, "device_id": 0}, NON_UNSIGNED),
    ],
)
def test_a_wrong_cuda_region_is_refused(memory_client: Client, body: Any, text: str) -> None:
    answer = memory_client.post("/v2/cudasharedmemory/region/r/register", json=body)
    assert answer.status_code == 400
    assert answer.get_json()["error"].startswith(text)


def test_a_handle_reaches_the_engine(memory_client: Client, engine: FakeEngine) -> None:
    text = HANDLE[:10] + "\n !" + HANDLE[10:]
    body = {"raw_handle": {"b64": text}, "byte_size": 8, "device_id": 1}
    assert memory_client.post("/v2/cudasharedmemory/region/r/register", json=body).status_code == 200
    assert engine.calls == [("register_cuda", "r", bytes(64), 1, 8)]


# --- the config API's JSON, against what Triton 2.51 answered for the same models, text for text


def test_config_json_has_64_bit_integers_as_strings() -> None:
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


def test_config_json_has_maps_floats_and_oneofs() -> None:
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
