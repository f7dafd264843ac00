from __future__ import annotations

import pytest

from trident.adapters.common.options import BadValue
from trident.app.settings.groups import split_groups
from trident.app.settings.server import SERVER_OPTIONS

PUBLIC_ROUTES = SERVER_OPTIONS["public_routes"].kind


def test_public_routes_are_split_into_groups_without_duplicates() -> None:
    assert split_groups("health,metrics,health") == ("health", "metrics")
    assert split_groups("none") == ()


@pytest.mark.parametrize("text", ["health", "metrics,inference", "none"])
def test_public_routes_take_the_known_groups(text: str) -> None:
    assert PUBLIC_ROUTES.parse(text) == text


@pytest.mark.parametrize("text", ["", "helth", "health,none"])
def test_public_routes_refuse_an_unknown_group(text: str) -> None:
    with pytest.raises(BadValue, match="--public-routes: "):
        PUBLIC_ROUTES.parse(text)
