"""The size limits and their warnings."""

from __future__ import annotations

from typing import Any

import pytest

from trident.adapters.vertex.endpoint import SHARED_ENDPOINT_BYTES, SizeLimits, received_size
from trident.core.errors import InvalidRequest


class Now:
    value = 0.0

    def __call__(self) -> float:
        return self.value


@pytest.fixture
def now() -> Now:
    return Now()


def test_larger_bodies_are_refused(now: Now) -> None:
    limits = SizeLimits(100, 200, now)
    limits.check_request(100)
    limits.check_response(200)
    with pytest.raises(InvalidRequest, match=r"^the request has 101 bytes, at most 100 are allowed$") as refused:
        limits.check_request(101)
    assert "--vertex-ai-max-request-size" in str(refused.value.hint)
    with pytest.raises(InvalidRequest, match=r"^the response has 201 bytes, at most 200 are allowed$") as refused:
        limits.check_response(201)
    assert "--vertex-ai-max-response-size" in str(refused.value.hint)


def test_a_limit_of_0_allows_any_size(now: Now) -> None:
    limits = SizeLimits(0, 0, now)
    limits.check_request(1 << 40)
    limits.check_response(1 << 40)


def test_bodies_over_a_shared_endpoints_limit_warn_once_a_minute(now: Now, caplog: pytest.LogCaptureFixture) -> None:
    limits = SizeLimits(0, 0, now)
    limits.check_request(SHARED_ENDPOINT_BYTES)
    assert caplog.messages == []
    for _ in range(3):
        limits.check_request(SHARED_ENDPOINT_BYTES + 1)
    assert caplog.messages == [
        "a request of 1500001 bytes is more than the 1500000 that a shared public endpoint lets through"
    ]
    limits.check_response(2_000_000)
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith("a response of 2000000 bytes")
    now.value = 59.9
    limits.check_request(2_000_000)
    limits.check_response(2_000_000)
    assert len(caplog.messages) == 2
    now.value = 60.0
    limits.check_request(2_000_000)
    limits.check_response(2_000_000)
    assert len(caplog.messages) == 4


def test_a_refused_body_gets_no_warning(now: Now, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidRequest):
        SizeLimits(1, 1, now).check_request(2_000_000)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({}, 0),
        ({"CONTENT_LENGTH": ""}, 0),
        ({"CONTENT_LENGTH": "12"}, 12),
        ({"CONTENT_LENGTH": "-1"}, 0),
        ({"CONTENT_LENGTH": "x"}, 0),
        ({"CONTENT_LENGTH": "5", "trident.body": b"1234567"}, 7),
        ({"trident.body": b""}, 0),
    ],
)
def test_the_received_size_is_known_before_the_body_is_read(environ: dict[str, Any], size: int) -> None:
    assert received_size(environ) == size
