"""Paths and methods against the route table, through the application that uses it."""

from __future__ import annotations

import pytest
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.access import GROUPS
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.routes import ROUTES


@pytest.fixture
def client() -> Client:
    return Client(V2Application(FakeEngine(), HttpOptions(), ThreadBridge()))


def test_route_names_are_unique_and_groups_are_known() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert {route.group for route in ROUTES} == set(GROUPS)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2/",
        "//v2",
        "/v2//health/live",
        "/v2/health/live/",
        "/v2/health/nope",
        "/v2%2Fhealth/live",
        "/%76%32",
        "/v1/foo",
        "/metrics",
        "/static/x",
        "/v2/models",
        "/v2/models/",
        "/v2/models/simple/versions",
        "/v2/models/simple/versions/abc",
        "/v2/models/simple/versions/abc/infer",
        "/v2/models/simple/nope",
        "/v2/models/simple/infer/",
        "/v2/models//infer",
        "/v2/repository",
        "/v2/repository/models/simple",
        "/v2/systemsharedmemory",
    ],
)
def test_unknown_paths_are_404(client: Client, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = client.open(path, method=method)
        assert (answer.status_code, answer.content_type) == (404, "text/plain")
        assert answer.data.startswith(b'{"error":"Not Found"')  # some have a hint


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


def test_the_path_of_statistics_is_never_a_model(client: Client) -> None:
    assert list(client.get("/v2/models/stats").get_json()) == ["model_stats"]
    assert client.get("/v2/models/stats/config").status_code == 404


def test_model_names_are_not_decoded(client: Client) -> None:
    assert client.get("/v2/models/a%2Fb").get_json()["name"] == "a%2Fb"
    answer = client.get("/v2/models/%00")
    assert answer.json == {"error": "Request for unknown model: '%00' is not found"}


def test_the_host_plays_no_part(client: Client) -> None:
    assert client.get("/v2/health/live", headers={"Host": "[::1"}).status_code == 200
