from __future__ import annotations

from typing import Any

import pytest

from trident.adapters.common.options import (
    ADDRESS,
    BOOLEAN,
    INTEGER,
    INTEGER64,
    LEVEL,
    NOT_ZERO,
    PORT,
    SWITCH,
    TEXT,
    BadOption,
    BadValue,
    Kind,
    Option,
    at_least,
    choice,
    group,
    integer,
    number,
    option,
    options_by_field,
    pair,
    repeated,
    setting,
    variable_of,
)
from trident.app.settings.server import SERVER_OPTIONS


@group("Look")
class Sample:
    main_colour: str = option("red", TEXT, "A colour.", own=True)
    keys: tuple[str, ...] = repeated(TEXT, "Keys.", aliases=("pass-key",), secret=True)
    silent: bool = option(False, SWITCH, "Say nothing.", flag="quiet")
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
    assert Sample() == Sample(main_colour="red", keys=(), silent=False, terminal="")


def test_an_option_has_the_name_of_its_field_unless_its_row_says_otherwise() -> None:
    named = {name: (each.flag, each.variable) for name, each in options_by_field(Sample).items()}
    assert named["main_colour"] == ("main-colour", "TRIDENT_MAIN_COLOUR")
    assert named["silent"] == ("quiet", "TRIDENT_QUIET")
    assert named["terminal"] == ("", "TERM")
    assert variable_of("http-max-input-size") == "TRIDENT_HTTP_MAX_INPUT_SIZE"


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


def test_an_option_is_spelled_and_its_default_described() -> None:
    assert SERVER_OPTIONS["http_port"].spelling == "--http-port=<integer>"
    assert SERVER_OPTIONS["log_info"].spelling == "--log-info=true|false"
    assert SERVER_OPTIONS["model_repository"].spelling == "--model-repository=<string>, --model-store=<string>"
    assert SERVER_OPTIONS["disable_auto_complete_config"].spelling == "--disable-auto-complete-config"
    assert SERVER_OPTIONS["delay_scheduler"].spelling == "TRITONSERVER_DELAY_SCHEDULER=<integer>"
    assert SERVER_OPTIONS["http_port"].default_text == "8000"
    assert SERVER_OPTIONS["metrics_address"].default_text == "that of --http-address"
    assert SERVER_OPTIONS["model_config_name"].default_text == ""


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BOOLEAN, "true", True),
        (BOOLEAN, "ON", True),
        (BOOLEAN, "1", True),
        (BOOLEAN, "False", False),
        (BOOLEAN, "off", False),
        (BOOLEAN, "0", False),
        (INTEGER, "-3", -3),
        (INTEGER, "+3", 3),
        (INTEGER, "2147483647", 2147483647),
        (INTEGER64, "9223372036854775807", 9223372036854775807),
        (PORT, "0", 0),
        (at_least(1), "3", 3),
        (at_least(1), "-3", 1),
        (NOT_ZERO, "0", False),
        (NOT_ZERO, "1", True),
        (NOT_ZERO, "no", True),
        (NOT_ZERO, "00", True),
        (LEVEL, "True", 1),
        (LEVEL, "false", 0),
        (LEVEL, "4", 4),
        (number(), "2e3", 2000.0),
        (number(), ".5", 0.5),
        (TEXT, "", ""),
        (choice("rate-limit", "off", "on"), "off", "off"),
        (ADDRESS, "ipv6:[::1]", "[::1]"),
        (choice("log-format", "default", "ISO8601"), "iso8601", "ISO8601"),
        (setting("host-policy", "policy name"), "cpu,cpu-cores=0-3", "cpu,cpu-cores=0-3"),
        (setting("metrics-config", ""), "counter_latencies=true", "counter_latencies=true"),
        (pair("rate-limit-resource", "name", "count"), "R:2:0", "R:2:0"),
    ],
)
def test_a_text_becomes_a_value(kind: Kind[Any], text: str, value: Any) -> None:
    parsed = kind.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (BOOLEAN, "yes", "invalid value for bool option: yes"),
        (BOOLEAN, "", "invalid value for bool option: "),
        (INTEGER, "1.4", "Invalid option value. Got 1.4"),
        (INTEGER, "", "Invalid option value. Got "),
        (INTEGER, " 1", "Invalid option value. Got  1"),
        (INTEGER, "1_000", "Invalid option value. Got 1_000"),
        (INTEGER, "\u0661", "Invalid option value. Got \u0661"),
        (INTEGER, "2147483648", "Provided option value is out of bound. Got 2147483648"),
        (INTEGER, "9" * 5000, f"Provided option value is out of bound. Got {'9' * 5000}"),
        (PORT, "65536", "Provided option value is out of bound. Got 65536"),
        (at_least(1), "-2147483649", "Provided option value is out of bound. Got -2147483649"),
        (integer(1), "0", "Provided option value is out of bound. Got 0"),
        (LEVEL, "on", "Invalid option value. Got on"),
        (LEVEL, "-1", "Provided option value is out of bound. Got -1"),
        (number(), "nan", "Invalid option value. Got nan"),
        (number(), "inf", "Invalid option value. Got inf"),
        (number(), "1e999", "Provided option value is out of bound. Got 1e999"),
        (number(0), "-1", "Provided option value is out of bound. Got -1"),
        (choice("log-format", "a", "b"), "c", "invalid argument for --log-format: 'c' is not one of a, b"),
        (
            setting("host-policy", "policy name"),
            "cpu-cores=0-3",
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu-cores=0-3",
        ),
        (
            setting("metrics-config", ""),
            "counter_latencies",
            "--metrics-config option format is <setting>=<value>. Got counter_latencies",
        ),
        (
            pair("rate-limit-resource", "name", "count"),
            "R",
            "--rate-limit-resource argument requires format <name>:<count>. Found: R",
        ),
    ],
)
def test_an_invalid_text_is_refused_with_the_reason(kind: Kind[Any], text: str, reason: str) -> None:
    with pytest.raises(BadValue) as refusal:
        kind.parse(text)
    assert str(refusal.value) == reason
