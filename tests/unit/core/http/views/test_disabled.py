from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from core.frontend.bridge import ThreadBridge
from core.frontend.fixed_settings import TRACE_OFF
from core.http.application import V2Application
from core.http.options import HttpOptions
from tests.unit.fake_engine import FakeEngine

SHM_OFF = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> FlaskClient:
    return V2Application(engine, HttpOptions(), ThreadBridge()).test_client()


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_shared_memory_status_is_empty(client: FlaskClient, kind: str) -> None:
    answer = client.get(f"/v2/{kind}sharedmemory/status")
    assert (answer.status_code, answer.content_type, answer.json) == (200, "application/json", [])
    answer = client.get(f"/v2/{kind}sharedmemory/region/r/status")
    text = f"Unable to find {kind} shared memory region: 'r'"
    assert (answer.status_code, answer.json) == (404, {"error": text})


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize("tail", ["register", "unregister", "region/r/register", "region/r/unregister"])
def test_shared_memory_cannot_be_changed(client: FlaskClient, kind: str, tail: str) -> None:
    answer = client.post(f"/v2/{kind}sharedmemory/{tail}")
    assert (answer.status_code, answer.content_type) == (501, "application/json")
    document = answer.get_json()
    assert document["error"] == SHM_OFF
    assert "the option has no effect" in document["hint"]
    assert client.get(f"/v2/{kind}sharedmemory/{tail}").status_code == 405


@pytest.mark.parametrize("path", ["/v2/othersharedmemory/status", "/v2/systemsharedmemory/other"])
def test_other_kinds_and_actions_are_not_found(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 404


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
