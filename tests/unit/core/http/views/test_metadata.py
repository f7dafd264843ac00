from __future__ import annotations

import pytest
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions


@pytest.fixture
def client() -> Client:
    return Client(V2Application(FakeEngine(), HttpOptions(), ThreadBridge()))


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


@pytest.mark.parametrize(
    ("path", "name", "version"),
    [
        ("/v2/models/stats", "all", "-1"),
        ("/v2/models/simple/stats", "simple", "-1"),
        ("/v2/models/simple/versions/1/stats", "simple", "1"),
    ],
)
def test_the_statistics_route_asks_for_its_model_and_version(
    client: Client, path: str, name: str, version: str
) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.content_type) == (200, "application/json")
    assert answer.json is not None
    (item,) = answer.json["model_stats"]
    assert (item["name"], item["version"]) == (name, version)


@pytest.mark.parametrize("tail", ["", "/config"])
def test_lookup_errors_are_json(client: Client, tail: str) -> None:
    answer = client.get(f"/v2/models/nope{tail}")
    assert (answer.status_code, answer.content_type) == (404, "application/json")
    assert answer.data == b'{"error":"Request for unknown model: \'nope\' is not found"}'


def test_an_unknown_model_has_no_statistics(client: Client) -> None:
    answer = client.get("/v2/models/nope/stats")
    assert (answer.status_code, answer.json) == (400, {"error": "requested model 'nope' is not available"})


def test_invalid_versions_are_refused(client: Client) -> None:
    answer = client.get("/v2/models/simple/versions/99999999999999999999")
    assert answer.status_code == 400
    assert b"(details: stol), version should be an integral value > 0" in answer.data
