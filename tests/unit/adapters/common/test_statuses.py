from __future__ import annotations

import pytest

from trident.adapters.common.routes import BODY_STATUSES, status_in
from trident.core.errors import InvalidRequest
from trident.core.http.errors import UnsupportedEncoding
from trident.core.http.payloads.formats import NotAcceptable, UnsupportedMediaType


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
