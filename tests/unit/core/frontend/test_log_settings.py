from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from trident.core.errors import InvalidRequest, ServerError, Unsupported
from trident.core.frontend.admin import changed_settings, shown_settings
from trident.core.observability.log import LogLevels, change_log


@pytest.fixture(autouse=True)
def _levels_of_the_start() -> None:
    """Whatever another test left."""
    change_log(LogLevels())


def applied(wanted: Mapping[str, object]) -> tuple[LogLevels, ServerError | None]:
    """The levels after the changes that were applied, and the error that ended them."""
    levels = LogLevels()
    try:
        for each in changed_settings(wanted, _any, _any, _any):
            levels = each
    except ServerError as error:
        return levels, error
    return levels, None


def _any(name: str, value: object) -> Any:
    if value == "wrong":
        raise InvalidRequest(f"not {name}")
    return value


def test_the_settings_have_triton_s_names_and_order() -> None:
    assert list(shown_settings()) == [
        "log_file",
        "log_info",
        "log_warning",
        "log_error",
        "log_verbose_level",
        "log_format",
    ]


def test_only_the_named_settings_change() -> None:
    assert applied({"log_verbose_level": 3, "log_error": False}) == (LogLevels(verbose=3, error=False), None)


@pytest.mark.parametrize(("value", "scope"), [("all", "all"), ("true", "true"), (True, "true"), (False, "false")])
def test_the_access_log_is_switched_by_a_text_or_a_boolean(value: object, scope: str) -> None:
    assert applied({"log_access": value, "response_timing": True}) == (LogLevels(access=scope, timing=True), None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log_verbos_level", "unknown log setting 'log_verbos_level', did you mean 'log_verbose_level'?"),
        ("zzz", "unknown log setting 'zzz'"),
    ],
)
def test_a_misspelled_setting_is_refused_before_anything_changes(name: str, text: str) -> None:
    levels, error = applied({"log_info": False, name: 1})
    assert isinstance(error, InvalidRequest)
    assert (levels, error.message) == (LogLevels(), text)


@pytest.mark.parametrize("text", ["default", "ISO8601", "json"])
def test_the_formats(text: str) -> None:
    assert applied({"log_format": text}) == (LogLevels(format=text), None)


def test_changes_before_an_invalid_one_stay() -> None:
    levels, error = applied({"log_format": "json", "log_verbose_level": "wrong", "log_info": False})
    assert levels == LogLevels(info=False)
    assert str(error) == "not log_verbose_level"


def test_an_unknown_format_names_the_known_ones() -> None:
    _, error = applied({"log_format": "xml"})
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.hint) == ("invalid argument for log_format, got: xml", "one of default, ISO8601, json")


def test_the_file_cannot_be_changed_and_then_nothing_is() -> None:
    levels, error = applied({"log_info": False, "log_file": "/tmp/other"})
    assert isinstance(error, Unsupported)
    assert error.message == "log file location can not be updated through network protocol"
    assert levels == LogLevels()
