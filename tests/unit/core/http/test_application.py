"""The two ways into the application, its request boundary, the hooks for subclasses, requests and replies, OpenAPI."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder

from tests.unit.fake_engine import FakeEngine
from trident.core.errors import BackendFailed, InvalidRequest, QueueFull, RegionFailed
from trident.core.frontend.access import parse_restricted
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import request_metrics_page
from trident.core.http.application import InferPath, V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.openapi import openapi_document, operations
from trident.core.http.reply import BODY_KEY, JSON, Environ, Headers, Reply, json_reply, send
from trident.core.http.routes import INFER as INFER_ROUTE
from trident.core.http.routes import ROUTES, Route
from trident.core.http.sample_request import FORMS
from trident.core.inference.tensors import Buffer

INFER = "/v2/models/simple/infer"


class Recording(V2Application):
    """Records the calls of the infer view, and answers them or raises `error`."""

    def __init__(self, *more: Route, **options: Any) -> None:
        super().__init__(FakeEngine(), HttpOptions(**options), ThreadBridge(), (RECORDED, *ROUTES[1:], *more))
        self.seen: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def infer_path(self, path: str) -> InferPath | None:
        found = super().infer_path(path)
        return found and (RECORDED, found[1])


def recorded(application: Recording, environ: Environ, model: str, version: str = "") -> Reply:
    application.seen.append((model, version))
    if application.error is not None:
        raise application.error
    return json_reply({"model": model})


RECORDED = replace(INFER_ROUTE, view=recorded)


@pytest.fixture
def application() -> Recording:
    return Recording()


def call(way: Callable[..., Any], path: str, method: str = "POST", **more: Any) -> tuple[str, dict[str, str], bytes]:
    """Call a WSGI function with a raw path. Returns status, headers and body."""
    environ = EnvironBuilder(method=method, data=b"{}").get_environ()
    environ.update(RAW_URI=path, PATH_INFO="/decoded/by/the/server", **more)
    started: list[Any] = []
    body = b"".join(way(environ, lambda status, headers, *_: started.append((status, dict(headers)))))
    return (*started[0], body)


@pytest.mark.parametrize(
    ("path", "model", "version"),
    [
        (INFER, "simple", ""),
        ("/v2/models/simple/versions/3/infer", "simple", "3"),
        (f"{INFER}?a=b", "simple", ""),
        ("/v2/models/a%2Fb/infer", "a%2Fb", ""),
        ("/v2/models/mod\xc3\xa9/infer", "modé", ""),
        ("/v2/models/stats/infer", "stats", ""),
        (f"http://host{INFER}", "simple", ""),
    ],
)
def test_fast_and_flask_routing_reach_the_same_view(
    application: Recording, path: str, model: str, version: str
) -> None:
    short = [call(application, path), call(application, path)]
    assert application.seen == [(model, version)] * 2
    assert call(application.wsgi_app, path) == short[0] == short[1]
    assert application.seen[2] == (model, version)
    assert short[0][0] == "200 OK"


def test_lookup_of_an_encoded_name_requires_access_and_loads_nothing() -> None:
    application = Recording(restricted=parse_restricted(["inference:key=value"]))
    engine: Any = application.engine
    looked: list[str] = []
    engine.model_nowait = lambda name, version=-1: looked.append(name)
    engine.model_spec = engine.model = None
    path = "/v2/models/simpl%65/infer"
    assert call(application, path)[0] == "403 Forbidden"
    assert "simple" not in looked
    looked.clear()
    for way in (application, application.wsgi_app):
        assert call(way, path, HTTP_KEY="value")[0] == "200 OK"
    assert application.seen == [("simple", "")] * 2
    assert looked == ["simpl%65", "simple"] * 2


def page_of(application: V2Application) -> str:
    return request_metrics_page(application.request_metrics).decode()


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/models/m:explain", "this server speaks the v2 protocol: POST /v2/models/m/infer"),
        ("/v1/x", "this server speaks the v2 protocol: POST /v2/models/MODEL/infer"),
        (f"{INFER}/", "leave out the slash at the end of the path"),
        ("/docs", "GET /v2/docs/openapi.json describes the routes"),
        ("/openapi.json", "GET /v2/docs/openapi.json describes the routes"),
        ("/console", "for a page in the browser start the server with --console=true: it is then at /console"),
        ("/metrics", "metrics are on a port of their own, --metrics-port (8002)"),
        ("/v2/models", "POST /v2/repository/index lists the models"),
        ("/v2/health", "GET /v2/health/ready tells whether the server is ready"),
        ("/v1/embedding", "did you mean /v1/embeddings?"),
        ("/v2/model/m/infer", "POST /v2/models/MODEL/infer, or /v2/models/MODEL/versions/1/infer, takes a request"),
        ("/predictions/m", "POST /v2/models/MODEL/infer, or /v2/models/MODEL/versions/1/infer, takes a request"),
        ("/nope/", "GET /v2/docs/openapi.json describes the routes"),
    ],
)
def test_a_path_without_a_route_has_a_hint(application: Recording, path: str, hint: str) -> None:
    status, headers, _ = call(application, path)
    assert (status, headers.get("Trident-Hint")) == ("404 Not Found", hint)


def test_options_are_the_methods_of_a_route(application: Recording) -> None:
    for path, allowed in ((INFER, "OPTIONS, POST"), ("/v2/logging", "GET, OPTIONS, POST")):
        status, headers, body = call(application, path, "OPTIONS")
        assert (status, headers["Allow"], body) == ("200 OK", allowed, b"")
    assert call(application, "/nope", "OPTIONS")[0] == "404 Not Found"
    assert application.seen == []


def caused() -> BackendFailed:
    error = BackendFailed("boom")
    error.__cause__ = ValueError("secret")
    return error


@pytest.mark.parametrize("error", [ValueError("secret"), MemoryError(), RecursionError(), caused()])
def test_an_unexpected_error_is_a_500_logged_once(
    application: Recording, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    application.error = error
    status, headers, body = call(application, INFER)
    assert (status, headers["Content-Type"]) == ("500 Internal Server Error", JSON)
    assert b"secret" not in body
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("error", [BackendFailed("the model's own"), RegionFailed("the client's fault")])
def test_a_500_of_a_model_or_a_client_is_logged_without_a_traceback(
    application: Recording, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    application.error = error
    with caplog.at_level(logging.INFO, logger="trident.http"):
        assert call(application, INFER)[0] == "500 Internal Server Error"
    (record,) = caplog.records
    assert record.exc_info is None


def test_restrictions_are_checked_before_everything() -> None:
    application = Recording(restricted=parse_restricted(["inference,health:key=value"]))
    refusal = b'{"error":"This API is restricted, expecting header \'key\'"}'
    for method, path in (
        ("POST", INFER),
        ("POST", "/v2/models/nope/versions/0/infer"),
        ("GET", INFER),
        ("POST", "/v2/models/simple/generate"),
        ("GET", "/v2/health/live"),
        ("PUT", "/v2/health/ready"),
        ("GET", "/v2/models/nope/ready"),
    ):
        status, headers, body = call(application, path, method)
        assert (status, headers["Content-Type"], body) == ("403 Forbidden", "text/plain", refusal)
    assert application.seen == []
    assert call(application, INFER, HTTP_KEY="value")[0] == "200 OK"
    assert call(application, "/v2/health/live", "GET", HTTP_KEY="value")[0] == "200 OK"
    assert call(application, "/v2", "GET")[0] == "200 OK"
    assert call(application, "/nope", "GET")[0] == "404 Not Found"


def test_probe_loads_a_model_only_for_authorized_clients() -> None:
    application = Recording(restricted=parse_restricted(["inference:key=value"]))
    engine: Any = application.engine
    loaded: list[str] = []
    engine.model, engine.knows_models = (lambda name, version=-1: loaded.append(name)), False
    path = "/v2/models/simple/ready"
    assert call(application, path, "GET")[0] == "200 OK"
    assert call(application, path, "GET", QUERY_STRING="load=true")[0] == "403 Forbidden"
    assert not loaded
    assert call(application, path, "GET", QUERY_STRING="load=true", HTTP_KEY="value")[0] == "200 OK"
    assert loaded == ["simple"]


def test_requests_through_flask_are_measured_by_route(application: Recording) -> None:
    call(application, "/v2/models/simple", "GET")
    call(application, "/made/up", "GET")
    call(application, "/v2", "BREW")
    call(application, INFER)
    page = page_of(application)
    assert 'flask_http_request_duration_seconds_count{method="GET",route="/v2/models/<model>",status="200"} 1.0' in page
    assert 'flask_http_request_total{method="GET",status="404"} 1.0' in page
    assert 'method="UNKNOWN"' in page
    assert "made" not in page
    assert "BREW" not in page
    assert "infer" not in page.partition("# HELP flask_")[2]


def test_responses_of_all_routes_are_counted_once(application: Recording) -> None:
    for _ in range(3):
        call(application, INFER)
    call(application, "/v2/models/simple/versions/3/infer")
    application.error = QueueFull("full")
    call(application, INFER)
    call(application, INFER, "PUT")
    call(application, "/v2/health/live", "GET")
    call(application, "/made/up", "GET")
    call(application, "/v2", "BREW")
    page = page_of(application)
    route = 'route="/v2/models/<model>/infer"'
    assert sorted(line for line in page.splitlines() if line.startswith("trident_http_responses_total{")) == [
        'trident_http_responses_total{method="GET",route="",status="404"} 1.0',
        'trident_http_responses_total{method="GET",route="/v2/health/live",status="200"} 1.0',
        f'trident_http_responses_total{{method="POST",{route},status="200"}} 4.0',
        f'trident_http_responses_total{{method="POST",{route},status="503"}} 1.0',
        f'trident_http_responses_total{{method="PUT",{route},status="405"}} 1.0',
        'trident_http_responses_total{method="UNKNOWN",route="/v2",status="405"} 1.0',
    ]


def test_an_error_outside_a_view_is_answered(application: Recording, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ValueError("secret")

    application.flask_app().before_request(broken)
    status, _, body = call(application, "/v2", "GET")
    assert status == "500 Internal Server Error"
    assert json.loads(body) == {"error": "unexpected error in the server, its log says more"}
    assert len(caplog.records) == 1


# --- the hooks of subclasses


class Teapot(V2Application):
    """A platform of another package: interpreted in both builds."""

    untyped_error_mime = JSON
    has_hint_field = False
    answers_options = False
    inference_header = "Length-Of-JSON"

    def status_of(self, error: Exception) -> int:
        return 418 if isinstance(error, InvalidRequest) else super().status_of(error)

    def body_headers(self, json_length: int | None) -> Headers:
        return [("X-Tea", "green"), *super().body_headers(json_length)]


def test_interpreted_subclass_changes_hooks_in_both_builds() -> None:
    teapot = Teapot(FakeEngine(), HttpOptions(), ThreadBridge())
    body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
    status, headers, _ = call(teapot, INFER, **{BODY_KEY: body})
    assert (status, headers["X-Tea"], headers["Content-Type"]) == ("200 OK", "green", JSON)
    status, _, text = call(teapot, INFER, **{BODY_KEY: body, "HTTP_LENGTH_OF_JSON": "x"})
    assert (status[:3], text) == ("418", b'{"error":"Unable to parse Length-Of-JSON, got: x"}')
    assert call(teapot, INFER, "OPTIONS")[0].startswith("405")
    assert call(teapot, "/made/up")[1]["Content-Type"] == JSON
    assert teapot.body_headers(9)[2] == ("Length-Of-JSON", "9")


DESCRIBED = [(route, operations()[route.name]) for route in ROUTES]


def test_openapi_describes_exactly_the_routes() -> None:
    document = openapi_document("triton", "1", DESCRIBED)
    assert operations().keys() == {route.name for route in ROUTES}
    assert operations()["sample_request"].parameters[0]["schema"]["enum"] == list(FORMS)
    rules = sum(len(route.rules) for route in ROUTES)
    assert len(document["paths"]) == rules
    found = [
        operation
        for item in document["paths"].values()
        for method, operation in item.items()
        if method in ("get", "post")
    ]
    assert len(found) == sum(len(route.rules) * len(route.methods) for route in ROUTES)
    assert len({each["operationId"] for each in found}) == len(found)


def test_bodies_of_bytes_have_a_type_for_makers_of_clients() -> None:
    """openapi-python-client tells the bodies of a route apart by it."""
    (infer, *_) = openapi_document("triton", "1", DESCRIBED)["paths"].values()
    schema = infer["post"]["requestBody"]["content"]["application/octet-stream"]["schema"]
    assert schema == {"type": "string", "format": "binary"}


def test_route_describes_its_required_credentials() -> None:
    options = HttpOptions(restricted=parse_restricted(["inference,metadata:x-key=secret"]))
    document = openapi_document("triton", "1", DESCRIBED, options=options)
    assert document["components"]["securitySchemes"] == {
        "header-x-key": {"type": "apiKey", "in": "header", "name": "x-key"}
    }
    assert document["paths"]["/v2"]["get"]["security"] == [{"header-x-key": []}]
    assert "security" not in document["paths"]["/v2/health/live"]["get"]
    assert "secret" not in str(document)


@pytest.mark.parametrize("environ", [{}, {BODY_KEY: b"", "wsgi.input": BytesIO()}])
def test_stream_parts_are_produced_lazily(environ: dict[str, Any]) -> None:
    events: list[str] = []

    def parts() -> Generator[Buffer]:
        try:
            for number in range(3):
                events.append(f"made {number}")
                yield memoryview(b"part")
        finally:
            events.append("closed")

    sent: Any = send(Reply(200, [], parts()), environ, lambda *arguments: None)
    assert environ == {}
    for part in sent:
        events.append(f"sent {bytes(part).decode()}")
        if len(events) == 4:
            sent.close()
    assert events == ["made 0", "sent part", "made 1", "sent part", "closed"]
