from __future__ import annotations

import pytest

from trident.core.errors import ConfigInvalid
from trident.core.http.front_end import HttpOptions


def test_no_header_is_forwarded_by_default() -> None:
    assert HttpOptions().header_pattern is None


def test_the_header_pattern_ignores_case_and_matches_a_part() -> None:
    pattern = HttpOptions(header_forward_pattern="x-(a|b)").header_pattern
    assert pattern is not None
    assert pattern.matches("My-X-A-Header")
    assert not pattern.matches("X-C")


def test_an_invalid_pattern_is_refused_at_start() -> None:
    with pytest.raises(ConfigInvalid, match="--http-header-forward-pattern is not a regular expression: '\\('"):
        HttpOptions(header_forward_pattern="(")
