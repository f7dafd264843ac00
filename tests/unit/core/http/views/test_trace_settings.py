from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions

START = (
    b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"",'
    b'"trace_mode":"triton"}'
)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(), ThreadBridge()))


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/simple/trace/setting"])
def test_settings_are_read(client: Client, engine: FakeEngine, path: str) -> None:
    for answer in (client.get(path), client.post(path), client.post(path, json={})):
        assert (answer.status_code, answer.content_type, answer.data) == (200, "application/json", START)
    assert engine.calls == []


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


def test_versions_have_no_trace_settings(client: Client) -> None:
    assert client.get("/v2/models/simple/versions/1/trace/setting").status_code == 404


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
