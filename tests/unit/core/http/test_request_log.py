from __future__ import annotations

import logging

import pytest
from werkzeug.test import Client

from core.frontend.bridge import ThreadBridge
from core.http.application import V2Application
from core.http.options import HttpOptions
from core.http.request_log import RequestLog
from tests.unit.fake_engine import FakeEngine


@pytest.fixture
def application() -> V2Application:
    return V2Application(FakeEngine(), HttpOptions(), ThreadBridge())


@pytest.mark.parametrize(
    ("method", "number"),
    [("GET", 0), ("HEAD", 1), ("POST", 2), ("PUT", 3), ("DELETE", 4), ("OPTIONS", 8), ("PATCH", 15), ("BREW", 16)],
)
def test_request_log_writes_tritons_number_of_the_method(
    application: V2Application, caplog: pytest.LogCaptureFixture, method: str, number: int
) -> None:
    caplog.set_level(logging.DEBUG, "trident.http")
    path = "/v2/models/a%2Fb/ready"
    answer = Client(RequestLog(application)).open(path, method=method, query_string={"secret": "1"})
    assert answer.status_code == Client(application).open(path, method=method).status_code
    assert caplog.messages.count(f"HTTP request: {number} {path}") == 1
    assert "secret" not in caplog.text


def test_request_log_passes_the_binary_offset_on(application: V2Application) -> None:
    environ = {"HTTP_INFERENCE_HEADER_CONTENT_LENGTH": "17", "PATH_INFO": "/v2/models/simple/infer"}
    assert RequestLog(application).binary_offset(environ) == application.binary_offset(environ)
    assert RequestLog(lambda environ, start: []).binary_offset(environ) == 0
