from __future__ import annotations

import pytest

from trident.adapters.common.routes import RouteAbsent, absent_route
from trident.core.errors import ErrorCode


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "UNKNOWN"])
def test_every_method_is_taken(method: str) -> None:
    assert method in absent_route("GET /ping").methods


def test_the_view_raises_an_error_that_lists_the_routes() -> None:
    with pytest.raises(RouteAbsent, match="the routes are: GET /ping") as caught:
        absent_route("GET /ping", "a hint").view(None, {}, rest="nothing")
    assert (caught.value.code, caught.value.hint) == (ErrorCode.NOT_FOUND, "a hint")
