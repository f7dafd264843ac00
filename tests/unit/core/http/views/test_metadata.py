from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from core.frontend.bridge import ThreadBridge
from core.http.application import V2Application
from core.http.options import HttpOptions
from tests.unit.fake_engine import FakeEngine


@pytest.fixture
def client() -> FlaskClient:
    return V2Application(FakeEngine(), HttpOptions(), ThreadBridge()).test_client()


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v2", {"name": "triton", "version": "2", "extensions": []}),
        ("/v2/models/simple", {"name": "simple", "versions": ["3"]}),
        ("/v2/models/simple/versions/1", {"name": "simple", "versions": ["1"]}),
        ("/v2/models/simple/config", {"name": "simple", "config_of": 3}),
        ("/v2/models/simple/versions/1/config", {"name": "simple", "config_of": 1}),
        ("/v2/models/stats", {"model_stats": [{"name": "all", "version": -1}]}),
        ("/v2/models/simple/stats", {"model_stats": [{"name": "simple", "version": -1}]}),
        ("/v2/models/simple/versions/1/stats", {"model_stats": [{"name": "simple", "version": 1}]}),
    ],
)
def test_what_the_engine_knows(client: FlaskClient, path: str, document: object) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.content_type, answer.json) == (200, "application/json", document)
    assert b" " not in answer.data


@pytest.mark.parametrize("tail", ["", "/config"])
def test_lookup_errors_are_json(client: FlaskClient, tail: str) -> None:
    answer = client.get(f"/v2/models/nope{tail}")
    assert (answer.status_code, answer.content_type) == (404, "application/json")
    assert answer.data == b'{"error":"Request for unknown model: \'nope\' is not found"}'


def test_an_unknown_model_has_no_statistics(client: FlaskClient) -> None:
    answer = client.get("/v2/models/nope/stats")
    assert (answer.status_code, answer.json) == (400, {"error": "requested model 'nope' is not available"})


def test_versions_that_are_none(client: FlaskClient) -> None:
    answer = client.get("/v2/models/simple/versions/99999999999999999999")
    assert answer.status_code == 400
    assert b"(details: stol), version should be an integral value > 0" in answer.data
