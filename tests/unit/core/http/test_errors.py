from __future__ import annotations

import pytest
from werkzeug.exceptions import BadRequest

from trident.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    InvalidRequest,
    ModelCold,
    ModelLoading,
    ModelNotFound,
    OutOfMemory,
    QueueFull,
    RequestCancelled,
    ServerError,
    ServerStopping,
    Unsupported,
)
from trident.core.frontend.access import ApiRestricted
from trident.core.http.errors import (
    MethodNotAllowed,
    RouteNotFound,
    UnsupportedEncoding,
    error_reply,
    header_value,
    log_error,
    status_of,
)
from trident.core.http.reply import JSON
from trident.core.remote.calls import EngineGone


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ServerError("?"), 400),
        (InvalidRequest("?"), 400),
        (RequestCancelled("?"), 400),
        (ModelNotFound("?"), 404),
        (BackendFailed("?"), 500),
        (Unsupported("?"), 501),
        (QueueFull("?"), 503),
        (DeadlineExceeded("?"), 503),
        (ServerStopping("?"), 503),
        (OutOfMemory("?"), 503),
        (ApiRestricted("h"), 403),
        (RouteNotFound(), 404),
        (MethodNotAllowed(["GET"]), 405),
        (BadRequest(), 400),
        (ValueError("?"), 500),
    ],
)
def test_status_of_maps_errors_to_statuses(error: Exception, status: int) -> None:
    assert status_of(error) == status


def test_error_body_has_the_hint_unless_disabled() -> None:
    error = ModelNotFound("no", hint="look\n\ud800")
    assert error_reply(error, 404, JSON, {}).body == [b'{"error":"no","hint":"look\\n?"}']
    assert error_reply(error, 404, JSON, {}, has_hint_field=False).body == [b'{"error":"no"}']
    assert error_reply(ModelNotFound("no"), 404, JSON, {}).body == [b'{"error":"no"}']
    assert len(error_reply(ModelNotFound("no", hint="x" * 5000), 404, JSON, {}).body[0]) < 1200


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (QueueFull("Exceeds maximum queue size"), ("Retry-After", "1")),
        (ModelLoading("Server not ready"), ("Retry-After", "1")),
        (EngineGone("engine unavailable"), ("Retry-After", "1")),
        (UnsupportedEncoding(), ("Accept-Encoding", "gzip, deflate")),
        (MethodNotAllowed({"POST", "GET"}), ("Allow", "GET, POST")),
    ],
)
def test_error_reply_adds_the_headers_of_the_error(error: ServerError, header: tuple[str, str]) -> None:
    assert error_reply(error, 400, JSON, {}).headers[-1] == header


def test_unprintable_error_is_answered() -> None:
    assert b"secret" not in error_reply(ValueError("secret"), 500, JSON, {}).body[0]
    assert error_reply(InvalidRequest("\ud800"), 400, JSON, {}).body == [b'{"error":"?"}']


def test_request_of_a_disconnected_client_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log_error(RequestCancelled(""), 400, {"REQUEST_METHOD": "POST", "PATH_INFO": "/x"})
    assert caplog.messages == ["POST /x: 400 the client went away"]


def test_a_probe_of_a_model_that_is_not_in_memory_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log_error(ModelCold("registered"), 503, {"REQUEST_METHOD": "GET", "PATH_INFO": "/v2/models/a/ready"})
    assert not caplog.messages


@pytest.mark.parametrize(
    ("text", "value"), [("a\r\nSet-Cookie: b", "a Set-Cookie: b"), ("é\u20ac", "é?"), ("x" * 5000, "x" * 1024)]
)
def test_header_values_are_one_line_of_latin_1(text: str, value: str) -> None:
    assert header_value(text) == value
