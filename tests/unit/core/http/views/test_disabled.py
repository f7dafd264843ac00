from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from core.frontend.bridge import ThreadBridge
from core.frontend.fixed_settings import TRACE_OFF
from core.http.application import V2Application
from core.http.options import HttpOptions
from tests.unit.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> FlaskClient:
    return V2Application(engine, HttpOptions(), ThreadBridge()).test_client()


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/simple/trace/setting"])
def test_trace_settings_are_off(client: FlaskClient, path: str) -> None:
    for answer in (client.get(path), client.post(path)):
        assert (answer.status_code, answer.content_type, answer.json) == (200, "application/json", TRACE_OFF)
    answer = client.post(path, json={"trace_rate": "5"})
    assert (answer.status_code, answer.content_type) == (501, "application/json")


def test_trace_settings_of_an_unknown_model_are_refused(client: FlaskClient, engine: FakeEngine) -> None:
    assert client.get("/v2/models/nope/trace/setting").status_code == 404
    engine.model_ready = False
    answer = client.get("/v2/models/simple/trace/setting")
    assert (answer.status_code, answer.json) == (400, {"error": "Request for unknown model : simple"})


def test_versions_have_no_trace_settings(client: FlaskClient) -> None:
    assert client.get("/v2/models/simple/versions/1/trace/setting").status_code == 404
