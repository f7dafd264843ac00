from __future__ import annotations

from typing import Any

import pytest
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.core.errors import ModelNotReady
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(max_input_size=1000), ThreadBridge()))


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/any/index", "/v2/repository/models/index"])
def test_index_lists_the_models(client: Client, path: str) -> None:
    for body in (b"", b"{}", b'{"ready":false}'):
        answer = client.post(path, data=body)
        assert (answer.status_code, answer.content_type) == (200, "application/json")
        assert answer.json == [{"name": "simple"}, {"name": "broken"}]
    assert client.post(path, data=b'{"ready":true}').json == [{"name": "simple", "state": "READY"}]


@pytest.mark.parametrize("value", [1, None, "true"])
def test_index_requires_a_boolean(client: Client, value: object) -> None:
    answer = client.post("/v2/repository/index", json={"ready": value})
    assert (answer.status_code, answer.json) == (400, {"error": "Invalid value for 'ready': expected a boolean"})


def test_load_passes_parameters_on(client: Client, engine: FakeEngine) -> None:
    answer = client.post(
        "/v2/repository/models/simple/load", json={"parameters": {"config": "{}", "file:1/model.onnx": "AAEC"}}
    )
    assert (answer.status_code, answer.content_type, answer.data) == (200, "application/json", b"")
    assert answer.headers["Content-Length"] == "0"
    assert client.post("/v2/repository/models/simple/load").status_code == 200
    assert engine.calls == [
        ("load", "simple", {"config": "{}", "file:1/model.onnx": b"\x00\x01\x02"}),
        ("load", "simple", {}),
    ]


@pytest.mark.parametrize("text", ["AAEC", "AA\nEC\n", "A\r\nAEC"])
def test_base64_may_be_broken_into_lines(client: Client, engine: FakeEngine, text: str) -> None:
    parameters = {"config": "{}", "file:1/model.onnx": text}
    assert client.post("/v2/repository/models/simple/load", json={"parameters": parameters}).status_code == 200
    assert engine.calls[0][2]["file:1/model.onnx"] == b"\x00\x01\x02"


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"config": 1}, 400, "Unable to parse 'config': attempt to access JSON non-string as string"),
        ({"foo": "x"}, 500, "unexpected error on creating Triton parameter"),
        ({"file:1/m": "é"}, 400, "'file:1/m' must be a valid base64 encoded file"),
        ({"file:1/m": "!!!!"}, 400, "'file:1/m' must be a valid base64 encoded file"),
        ({"file:1/m": "AAEC,AAEC"}, 400, "'file:1/m' must be a valid base64 encoded file"),
        ({"file:1/m": "AA=EC"}, 400, "'file:1/m' must be a valid base64 encoded file"),
        ({"file:1/m": "A"}, 400, "'file:1/m' must be a valid base64 encoded file"),
        ([], 400, "Unable to parse 'parameters': attempt to access JSON non-object as object"),
    ],
)
def test_invalid_load_parameters_are_refused(
    client: Client, engine: FakeEngine, parameters: object, status: int, text: str
) -> None:
    answer = client.post("/v2/repository/models/simple/load", json={"parameters": parameters})
    assert (answer.status_code, answer.json) == (status, {"error": text})
    assert engine.calls == []


@pytest.mark.parametrize(
    ("body", "dependents"),
    [
        (None, False),
        ({}, False),
        ({"parameters": {"unload_dependents": True}}, True),
        ({"parameters": {"x": 1}}, False),
    ],
)
def test_unload_passes_unload_dependents_on(client: Client, engine: FakeEngine, body: Any, dependents: bool) -> None:
    answer = client.post("/v2/repository/models/simple/unload", json=body)
    assert (answer.status_code, answer.content_type, answer.data) == (200, "application/json", b"")
    assert engine.calls == [("unload", "simple", dependents)]


def test_unload_dependents_must_be_a_boolean(client: Client) -> None:
    answer = client.post("/v2/repository/models/simple/unload", json={"parameters": {"unload_dependents": 1}})
    text = "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
    assert (answer.status_code, answer.json) == (400, {"error": text})


@pytest.mark.parametrize("action", ["load", "unload"])
def test_a_repository_name_is_refused(client: Client, action: str) -> None:
    answer = client.post(f"/v2/repository/foo/models/simple/{action}")
    assert (answer.status_code, answer.json) == (501, {"error": "'repository_name' specification is not supported"})


@pytest.mark.parametrize("action", ["load", "unload"])
def test_the_engine_decides_whether_loading_is_allowed(client: Client, engine: FakeEngine, action: str) -> None:
    text = "explicit model load / unload is not allowed if polling is enabled"
    engine.refusal = ModelNotReady(text)
    answer = client.post(f"/v2/repository/models/simple/{action}")
    assert (answer.status_code, answer.content_type, answer.json) == (503, "application/json", {"error": text})


def test_bodies_above_the_limit_are_refused(client: Client) -> None:
    answer = client.post("/v2/repository/index", data=b" " * 1001)
    assert answer.status_code == 400
    assert answer.json is not None
    assert answer.json["error"].endswith("Use --http-max-input-size to increase the limit.")
