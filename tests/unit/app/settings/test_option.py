from __future__ import annotations

import pytest

from trident.adapters.common.options import (
    BOOLEAN,
    FLAG,
    TEXT,
    BadOption,
    Option,
    group,
    option,
    options_by_field,
    repeated,
    variable_of,
)
from trident.app.settings.server import SERVER_OPTIONS


@group("Look")
class Sample:
    main_colour: str = option("red", TEXT, "A colour.", own=True)
    keys: tuple[str, ...] = repeated(TEXT, "Keys.", aliases=("pass-key",), secret=True)
    silent: bool = option(False, FLAG, "Say nothing.", flag="quiet")
    terminal: str = option("", TEXT, "The kind of terminal.", variable="TERM")
    origin: str = "not an option"


def test_options_by_field_gives_the_options_in_order() -> None:
    options = options_by_field(Sample)
    assert list(options) == ["main_colour", "keys", "silent", "terminal"]
    assert {each.section for each in options.values()} == {"Look"}
    assert options["main_colour"].default == "red"
    assert options["keys"].names == ("keys", "pass-key")
    assert options["keys"].variables == ("TRIDENT_KEYS", "TRIDENT_PASS_KEY")
    assert not options["silent"].takes_value


def test_an_option_has_the_name_of_its_field_unless_its_row_says_otherwise() -> None:
    named = {name: (each.flag, each.variable) for name, each in options_by_field(Sample).items()}
    assert named["main_colour"] == ("main-colour", "TRIDENT_MAIN_COLOUR")
    assert named["silent"] == ("quiet", "TRIDENT_QUIET")
    assert named["terminal"] == ("", "TERM")


def test_the_field_has_the_default_of_its_option() -> None:
    assert Sample() == Sample(main_colour="red", keys=(), silent=False, terminal="")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "true"), (False, "false"), (2.0, "2"), (0.25, "0.25"), (None, ""), (("a", "b"), "a, b"), (8000, "8000")],
)
def test_a_value_is_shown_as_a_person_writes_it(value: object, shown: str) -> None:
    plain = Option(flag="x", kind=BOOLEAN)
    assert plain.show(value) == shown


def test_a_secret_is_masked_after_its_name() -> None:
    secret = options_by_field(Sample)["keys"]
    assert secret.show(("health:X-Key=s3cret=s3cret", "s3cret")) == "health:X-Key=***, ***"
    assert secret.show(()) == ""


def test_the_error_names_an_option_or_a_variable() -> None:
    assert str(BadOption.of("--http-port", "why")) == 'Bad option: "--http-port".\nwhy'
    assert str(BadOption.of("TRIDENT_HTTP_PORT", "why")) == 'Bad variable: "TRIDENT_HTTP_PORT".\nwhy'


def test_the_variable_is_the_flag_in_capitals() -> None:
    assert variable_of("http-max-input-size") == "TRIDENT_HTTP_MAX_INPUT_SIZE"


def test_an_option_is_spelled_as_it_is_typed() -> None:
    assert SERVER_OPTIONS["http_port"].spelling == "--http-port=<integer>"
    assert SERVER_OPTIONS["log_info"].spelling == "--log-info=true|false"
    assert SERVER_OPTIONS["model_repository"].spelling == "--model-repository=<string>, --model-store=<string>"
    assert SERVER_OPTIONS["disable_auto_complete_config"].spelling == "--disable-auto-complete-config"
    assert SERVER_OPTIONS["delay_scheduler"].spelling == "TRITONSERVER_DELAY_SCHEDULER=<integer>"


def test_a_default_that_depends_on_other_options_is_described() -> None:
    assert SERVER_OPTIONS["http_port"].default_text == "8000"
    assert SERVER_OPTIONS["metrics_address"].default_text == "that of --http-address"
    assert SERVER_OPTIONS["model_config_name"].default_text == ""
