from __future__ import annotations

import pytest

from core.errors import ConfigInvalid
from core.frontend.header_pattern import header_pattern


def test_case_does_not_matter() -> None:
    pattern = header_pattern("http-header-forward-pattern", "^x-team")
    assert pattern is not None
    assert pattern.matches("X-Team-Name")


def test_an_empty_option_forwards_nothing() -> None:
    assert header_pattern("http-header-forward-pattern", "") is None


def test_a_broken_pattern_names_its_option() -> None:
    with pytest.raises(ConfigInvalid, match="--grpc-header-forward-pattern is not a regular expression: '\\(': "):
        header_pattern("grpc-header-forward-pattern", "(")


def test_the_token_is_not_forwarded_where_it_is_asked_for() -> None:
    for hides_token in (True, False):
        pattern = header_pattern("http-header-forward-pattern", ".*", hides_token=hides_token)
        assert pattern is not None
        assert pattern.matches("Authorization") is not hides_token
        assert pattern.matches("X-Authorization")
