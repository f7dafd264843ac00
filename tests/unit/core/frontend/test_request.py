"""The parameters, the headers and the version that a request has."""

from __future__ import annotations

import pytest

from trident.core.errors import ConfigInvalid, InvalidRequest
from trident.core.frontend.request import LATEST, header_pattern, version_number


@pytest.mark.parametrize(
    ("text", "number"), [("", LATEST), ("1", 1), ("007", 7), (str(2**63 - 1), 2**63 - 1), ("0" * 5000 + "9", 9)]
)
def test_version_number_reads_versions(text: str, number: int) -> None:
    assert version_number(text) == number


@pytest.mark.parametrize("text", ["abc", "-1", "1.0", "²", str(2**63), "9" * 100_000])
def test_invalid_versions_are_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        version_number(text)
    assert refused.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("text", ["0", "000"])
def test_version_zero_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        version_number(text)
    assert refused.value.message == (
        f"invalid model version specified '{text}' , version should be an integral value > 0"
    )


def test_header_patterns_ignore_case_and_take_linear_time() -> None:
    pattern = header_pattern("http-header-forward-pattern", "^x-team")
    assert pattern is not None
    assert pattern.matches("X-Team-Name")
    found = header_pattern("http-header-forward-pattern", "^(a|aa)+$")
    assert found is not None
    assert not found.matches("a" * 10_000 + "!")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [("(?-i)^X-", "X-a", "x-a"), (r"^\pL+\z", "team", "x-team"), (r"\Qa.b\E", "A.B", "aXb"), (r"^a\C$", "ab", "a")],
)
def test_header_patterns_have_the_syntax_of_re2(pattern: str, matching: str, other: str) -> None:
    found = header_pattern("http-header-forward-pattern", pattern)
    assert found is not None
    assert (found.matches(matching), found.matches(other), found.matches(matching)) == (True, False, True)


def test_an_empty_header_pattern_forwards_nothing_and_an_invalid_one_names_its_option() -> None:
    assert header_pattern("http-header-forward-pattern", "") is None
    with pytest.raises(ConfigInvalid, match="--grpc-header-forward-pattern is not a regular expression: '\\(': "):
        header_pattern("grpc-header-forward-pattern", "(")


def test_the_token_header_is_never_forwarded_when_tokens_are_required() -> None:
    for hides_token in (True, False):
        pattern = header_pattern("http-header-forward-pattern", ".*", hides_token=hides_token)
        assert pattern is not None
        assert pattern.matches("Authorization") is not hides_token
        assert pattern.matches("X-Authorization")
