from __future__ import annotations

import pytest

from trident.adapters.common.routes import BODY_STATUSES, RouteAbsent, absent_route, metrics_route, status_in
from trident.core.errors import ErrorCode, InvalidRequest
from trident.core.http.errors import UnsupportedEncoding
from trident.core.http.metrics import MetricsPage
from trident.core.http.payloads.formats import NotAcceptable, UnsupportedMediaType

# --- absent route


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "UNKNOWN"])
def test_every_method_is_taken(method: str) -> None:
    assert method in absent_route("GET /ping").methods


def test_the_view_raises_an_error_that_lists_the_routes() -> None:
    with pytest.raises(RouteAbsent, match="the routes are: GET /ping") as caught:
        absent_route("GET /ping", "a hint").view(None, {}, rest="nothing")
    assert (caught.value.code, caught.value.hint) == (ErrorCode.NOT_FOUND, "a hint")


# --- metrics route


def test_each_request_renders_the_page() -> None:
    pages = iter([b"first", b"second"])
    route = metrics_route(MetricsPage(lambda _: next(pages)))
    replies = [route.view(None, {}) for _ in range(2)]
    assert [reply.body for reply in replies] == [[b"first"], [b"second"]]
    assert dict(replies[0].headers)["Content-Type"] == "text/plain; charset=utf-8"


# --- statuses


@pytest.mark.parametrize(
    ("error", "status"),
    [(UnsupportedMediaType("x"), 415), (UnsupportedEncoding(), 415), (NotAcceptable("x"), 406)],
)
def test_errors_of_bodies_have_their_statuses(error: Exception, status: int) -> None:
    assert status_in(BODY_STATUSES, error) == status


def test_the_first_matching_class_wins() -> None:
    statuses = ((UnsupportedMediaType, 1), (InvalidRequest, 2))
    assert [status_in(statuses, error) for error in (UnsupportedMediaType("x"), NotAcceptable("x"))] == [1, 2]


def test_another_error_has_no_status() -> None:
    assert status_in(BODY_STATUSES, ValueError("x")) is None
