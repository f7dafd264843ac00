"""The two ways into the application, its request boundary, the hooks for subclasses, requests and replies, OpenAPI."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from werkzeug.test import Client, EnvironBuilder

from tests.project import pure_python_only
from tests.unit.fake_engine import FakeEngine
from trident.core.errors import (
    BackendFailed,
    ConfigInvalid,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    RegionFailed,
    ServerError,
)
from trident.core.frontend.access import parse_restricted
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import InferPath, V2Application
from trident.core.http.front_end import INFERENCE_KEY, HttpOptions, InferenceNote, note_inference
from trident.core.http.metrics import request_metrics_page
from trident.core.http.openapi import OPERATIONS, openapi_document
from trident.core.http.reply import (
    BODY_KEY,
    JSON,
    STATUS_LINES,
    TEXT,
    Environ,
    Headers,
    Reply,
    body_size,
    empty_reply,
    header_of,
    json_reply,
    path_of,
    send,
)
from trident.core.http.routes import INFER as INFER_ROUTE
from trident.core.http.routes import ROUTES, Route
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Buffer
from trident.core.observability.switches import SWITCHES

# Subclasses in Python.
pytestmark = pure_python_only

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


def echo(request: InferenceRequest) -> InferenceResponse:
    array = np.frombuffer(request.inputs[0].data, dtype=np.int32)
    return InferenceResponse("simple", 3, [OutputTensor("OUT", "INT32", (len(array),), array)], id=request.id)


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
def test_both_ways_reach_the_view(application: Recording, path: str, model: str, version: str) -> None:
    short = [call(application, path), call(application, path)]
    assert application.seen == [(model, version)] * 2
    assert call(application.wsgi_app, path) == short[0] == short[1]
    assert application.seen[2] == (model, version)
    assert short[0][0] == "200 OK"


def page_of(application: V2Application) -> str:
    return request_metrics_page(application.request_metrics).decode()


def test_few_paths_are_remembered_and_none_with_a_query(application: Recording) -> None:
    for n in range(3000):
        call(application, f"/v2/models/m{n}/infer")
        call(application, f"{INFER}?{n}")
    assert 0 < len(application._infer_paths) <= 1024
    assert not any("?" in target for target in application._infer_paths)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/models/m:explain", "this server speaks the v2 protocol: POST /v2/models/m/infer"),
        ("/v1/x", "this server speaks the v2 protocol: POST /v2/models/MODEL/infer"),
        (f"{INFER}/", "leave out the slash at the end of the path"),
        ("/nope/", None),
    ],
)
def test_a_path_without_a_route_has_a_hint(application: Recording, path: str, hint: str | None) -> None:
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


def test_a_refusal_before_parsing_is_text() -> None:
    application = V2Application(FakeEngine(), HttpOptions(), ThreadBridge())
    for path, status in (
        ("/v2/models/nope/infer", "404 Not Found"),
        ("/v2/models/simple/versions/9/infer", "404 Not Found"),
        ("/v2/models/simple/versions/0/infer", "400 Bad Request"),
    ):
        answer = call(application, path)
        assert (answer[0], answer[1]["Content-Type"]) == (status, "text/plain")
    assert call(application, INFER)[1]["Content-Type"] == JSON


def test_an_infer_request_is_answered_from_body_to_body() -> None:
    application = V2Application(FakeEngine(echo), HttpOptions(), ThreadBridge())
    header = b'{"id":"7","inputs":[{"name":"IN","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}]}'
    content = header + np.array([1, -2], dtype=np.int32).tobytes()
    answer = Client(application).post(
        INFER, data=content, headers={"Inference-Header-Content-Length": str(len(header))}
    )
    assert (answer.status_code, answer.content_type) == (200, JSON)
    assert answer.json == {
        "id": "7",
        "model_name": "simple",
        "model_version": "3",
        "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [2], "data": [1, -2]}],
    }


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


def test_errors_of_all_routes_are_counted(application: Recording) -> None:
    call(application, "/made/up", "GET")
    call(application, INFER, "PUT")
    call(application, "/v2", "GET")
    page = page_of(application)
    errors = [line for line in page.splitlines() if line.startswith("trident_http_errors_total{")]
    assert errors == [
        'trident_http_errors_total{method="GET",route="",status="404"} 1.0',
        'trident_http_errors_total{method="PUT",route="/v2/models/<model>/infer",status="405"} 1.0',
    ]


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


def ping(application: V2Application, environ: Environ) -> Reply:
    return json_reply({"pong": True})


class Platform(Recording):
    binary_mime = "application/x-platform"
    inference_header = "X-Json-Size"

    def __init__(self) -> None:
        super().__init__(Route("ping", ("/ping",), "health", frozenset({"GET"}), ping))

    def infer_path(self, path: str) -> InferPath | None:
        if path == "/invocations":
            return RECORDED, {"model": "simple", "version": ""}
        return super().infer_path(path)

    def status_of(self, error: Exception) -> int:
        return 507 if isinstance(error, QueueFull) else super().status_of(error)


class OwnHeaders(V2Application):
    early_error_mime = JSON

    def adopt_headers(self, environ: Environ, request: InferenceRequest) -> None:
        request.id = request.id or environ.get("HTTP_X_ID", "")

    def parameter_headers(self, parameters: Mapping[str, Parameter]) -> Headers:
        return [("X-Tag", str(parameters["tag"]))]

    def binary_header(self, environ: Environ) -> str | None:
        return str(environ.get("CONTENT_TYPE", "")).partition("size=")[2] or None

    def body_headers(self, json_length: int | None) -> Headers:
        return [("Content-Type", f"{self.binary_mime};size={json_length}")]


def test_subclasses_can_add_routes_and_infer_paths() -> None:
    assert call(Platform(), "/ping", "GET")[2] == b'{"pong":true}'
    assert call(Platform(), "/v2", "GET")[0] == "200 OK"
    assert call(Recording(), "/ping", "GET")[0] == "404 Not Found"
    application = Platform()
    assert call(application, "/invocations")[0] == "200 OK"
    assert call(application, INFER)[0] == "200 OK"
    assert application.seen == [("simple", ""), ("simple", "")]


def test_subclasses_can_change_statuses_for_both_ways() -> None:
    application = Platform()
    application.error = QueueFull("full")
    assert call(application, INFER)[0] == "507 Insufficient Storage"
    assert call(application.wsgi_app, INFER)[0] == "507 Insufficient Storage"
    application.error = ModelNotFound("no")
    assert call(application, INFER)[0] == "404 Not Found"


def test_subclasses_mark_binary_bodies_by_attributes_or_methods() -> None:
    application = Platform()
    assert application.binary_header({"HTTP_X_JSON_SIZE": "5"}) == "5"
    assert application.binary_header({"HTTP_INFERENCE_HEADER_CONTENT_LENGTH": "5"}) is None
    assert application.body_headers(None) == [("Content-Type", JSON)]
    assert application.body_headers(7) == [("Content-Type", "application/x-platform"), ("X-Json-Size", "7")]
    application = OwnHeaders(FakeEngine(echo), HttpOptions(), ThreadBridge())
    header = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}]}'
    answer = Client(application).post(
        INFER, data=header + b"\x01\0\0\0", headers={"Content-Type": f"x;size={len(header)}"}
    )
    assert (answer.status_code, answer.content_type) == (200, "application/octet-stream;size=None")


def timed(request: InferenceRequest) -> InferenceResponse:
    response = echo(request)
    response.times = InferenceTimes(120_000, 0, 2_000_000, 0, 8)
    return response


@pytest.mark.parametrize("tells", [False, True])
def test_times_of_an_answer_are_a_header_if_the_server_tells_them(tells: bool) -> None:
    body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
    application = V2Application(FakeEngine(timed), HttpOptions(), ThreadBridge())
    SWITCHES.set(timing=tells)
    header = Client(application).post(INFER, data=body).headers.get("Server-Timing")
    assert (header or "").startswith("queue;dur=0.120, ") is tells


@pytest.mark.parametrize(
    ("error", "note"), [(ModelNotFound("no", model="m"), InferenceNote("m")), (InvalidRequest("bad"), None)]
)
def test_the_model_of_an_error_is_noted(application: Recording, error: ServerError, note: InferenceNote | None) -> None:
    application.error = error
    environ = EnvironBuilder(path=INFER, method="POST").get_environ()
    list(application(environ, lambda *_: None))
    assert environ.get(INFERENCE_KEY) == note


DESCRIBED = [(route, OPERATIONS[route.name]) for route in ROUTES]


def test_every_route_is_described_and_nothing_else() -> None:
    document = openapi_document("triton", "1", DESCRIBED)
    assert OPERATIONS.keys() == {route.name for route in ROUTES}
    rules = sum(len(route.rules) for route in ROUTES)
    assert len(document["paths"]) == rules
    operations = [
        operation
        for item in document["paths"].values()
        for method, operation in item.items()
        if method in ("get", "post")
    ]
    assert len(operations) == sum(len(route.rules) * len(route.methods) for route in ROUTES)
    assert len({each["operationId"] for each in operations}) == len(operations)


def test_a_route_says_what_its_callers_must_show() -> None:
    options = HttpOptions(restricted=parse_restricted(["inference,metadata:x-key=secret"]))
    document = openapi_document("triton", "1", DESCRIBED, options=options)
    assert document["components"]["securitySchemes"] == {
        "header-x-key": {"type": "apiKey", "in": "header", "name": "x-key"}
    }
    assert document["paths"]["/v2"]["get"]["security"] == [{"header-x-key": []}]
    assert "security" not in document["paths"]["/v2/health/live"]["get"]
    assert "secret" not in str(document)


def started(reply: Reply, environ: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    calls: list[Any] = []
    body = list(send(reply, environ, lambda *arguments: calls.append(arguments)))
    return calls, body


def test_a_status_line_and_an_empty_reply() -> None:
    assert STATUS_LINES[200] == "200 OK"
    assert STATUS_LINES[405] == "405 Method Not Allowed"
    reply = empty_reply(TEXT, 400)
    assert (reply.status, reply.body) == (400, [])
    assert reply.headers == [("Content-Type", TEXT), ("Content-Length", "0")]


def test_send_gives_buffers_to_our_worker_and_bytes_to_others() -> None:
    reply = Reply(200, [("A", "b")], [b"x", memoryview(b"yy"), bytearray(b"z")])
    calls, body = started(reply, {})
    assert calls == [("200 OK", [("A", "b")])]
    assert body == [b"x", b"yy", b"z"]
    assert all(type(part) is bytes for part in body)
    part = memoryview(b"yy")
    _, body = started(Reply(200, [], [b"x", part]), {BODY_KEY: b""})
    assert body[1] is part
    assert body_size(Reply(200, [], [b"x", memoryview(b"yy")])) == 3
    assert body_size(Reply(200, [], (part for part in [b"x"]))) == 0


@pytest.mark.parametrize("environ", [{}, {BODY_KEY: b"", "wsgi.input": BytesIO()}])
def test_the_parts_of_a_stream_are_made_one_after_the_other(environ: dict[str, Any]) -> None:
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


# --- request headers


def test_header_of_distinguishes_underscores_where_names_are_kept() -> None:
    kept = {"trident.headers": [("Admin-Key", "b"), ("Admin_Key", "a")], "HTTP_ADMIN_KEY": "b"}
    assert header_of(kept, "admin_key") == "a"
    assert header_of({"trident.headers": [("Admin-Key", "a")], "HTTP_ADMIN_KEY": "a"}, "admin_key") is None
    # Other servers do not keep the names.
    assert header_of({"HTTP_ADMIN_KEY": "a"}, "admin_key") == "a"


# --- request path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v2", "/v2"),
        ("/v2?a=/b", "/v2"),
        ("/v2#part", "/v2"),
        ("/v2/models/a%2Fb", "/v2/models/a%2Fb"),
        ("//v2", "//v2"),
        ("/v2//models/", "/v2//models/"),
        ("http://host:8000/v2?x", "/v2"),
        ("http://host", "/"),
        ("*", "*"),
        ("", "/"),
        ("/mod\xc3\xa9", "/modé"),
        ("/mod\xff", "/mod\ufffd"),
        ("/mod\u20ac", "/mod?"),
    ],
)
def test_path_of_takes_the_path_from_a_target(target: str, path: str) -> None:
    assert path_of(target) == path


# --- request log


# --- options


def test_the_header_pattern_forwards_nothing_by_default_and_ignores_case() -> None:
    assert HttpOptions().header_pattern is None
    pattern = HttpOptions(header_forward_pattern="x-(a|b)").header_pattern
    assert pattern is not None
    assert pattern.matches("My-X-A-Header")
    assert not pattern.matches("X-C")
    with pytest.raises(ConfigInvalid, match="--http-header-forward-pattern is not a regular expression: '\\('"):
        HttpOptions(header_forward_pattern="(")


# --- the header Server-Timing


# --- notes for the access log


def test_the_model_and_the_longest_times_of_all_responses_are_noted() -> None:
    environ: Environ = {}
    responses = [InferenceResponse("m", 3, []) for _ in range(2)]
    note_inference(environ, responses)
    assert environ == {}
    responses[0].times = InferenceTimes(1, 2, 3, 4, 5)
    responses[1].times = InferenceTimes(9, 2, 3, 4, 1)
    note_inference(environ, responses)
    assert environ == {INFERENCE_KEY: InferenceNote("m", 3, InferenceTimes(9, 2, 3, 4, 5))}
