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
    TEXT,
    BadValue,
    Kind,
    at_least,
    choice,
    integer,
    number,
    pair,
    setting,
)


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
