from __future__ import annotations

import logging

import pytest

from trident.core.http.application import log_request


@pytest.mark.parametrize(
    ("method", "number"),
    [("GET", 0), ("HEAD", 1), ("POST", 2), ("PUT", 3), ("DELETE", 4), ("OPTIONS", 8), ("PATCH", 15), ("BREW", 16)],
)
def test_request_log_writes_tritons_number_of_the_method(
    caplog: pytest.LogCaptureFixture, method: str, number: int
) -> None:
    caplog.set_level(logging.DEBUG, "trident.http")
    log_request({"REQUEST_METHOD": method, "RAW_URI": "/v2/models/a%2Fb/ready?secret=1"})
    assert caplog.messages == [f"HTTP request: {number} /v2/models/a%2Fb/ready"]
