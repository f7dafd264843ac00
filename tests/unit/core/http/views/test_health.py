from __future__ import annotations

import pytest
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.lifecycle.state import Phase, ServingPhase


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(), ThreadBridge()))


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready"])
def test_a_healthy_server_is_200_and_empty(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.content_type, answer.data) == (200, "text/plain", b"")
    assert answer.headers["Content-Length"] == "0"


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


def test_live_does_not_depend_on_models(client: Client, engine: FakeEngine) -> None:
    engine.ready = False
    engine.serving = ServingPhase(name=Phase.LOADING, total=3)
    assert client.get("/v2/health/live").status_code == 200


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


def test_an_unready_server_after_the_start_does_not_report_ready(client: Client, engine: FakeEngine) -> None:
    engine.ready = False
    engine.serving = ServingPhase(name=Phase.READY, done=1, total=1, failures={"broken": "version 1 is UNAVAILABLE"})
    assert client.get("/v2/health/ready").json == {
        "phase": "failed",
        "loaded": 1,
        "total": 1,
        "failures": {"broken": "version 1 is UNAVAILABLE"},
    }
    # However the start ended.
    for name in (Phase.READY, Phase.FAILED):
        engine.serving = ServingPhase(name=name, model="simple", done=1, total=1)
        assert client.get("/v2/health/ready").json == {"phase": "loading", "model": "simple", "loaded": 1, "total": 1}


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


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v2/models/nope/ready", 404, "Request for unknown model: 'nope' is not found"),
        ("/v2/models/simple/versions/9/ready", 404, "Request for unknown model: 'simple' version 9 is not found"),
        (
            "/v2/models/simple/versions/0/ready",
            400,
            "invalid model version specified '0' , version should be an integral value > 0",
        ),
    ],
)
def test_unknown_models_are_refused(client: Client, path: str, status: int, text: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.content_type) == (status, "text/plain")
    assert answer.get_json(force=True) == {"error": text}
