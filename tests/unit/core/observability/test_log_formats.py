from __future__ import annotations

import json
import logging
import os
import re
import sys
from typing import Any

import pytest

from trident.core.observability.log import JsonFormatter, TextFormatter, verbose_level

NOON = 1735732800.123456  # 2025-01-01 12:00:00.123456 UTC
FORGED = 'I0101 12:00:00.000000 1 server.py:1] "all is well"'
ATTACKS = [f"x\n{FORGED}", f"x\r\n{FORGED}", f"x\r{FORGED}", f'x"\n{FORGED}', f"x\u2028{FORGED}", f"x\x85{FORGED}"]
EVENT = re.compile(r"[IWE]\d{4} |\d{4}-\d\d-\d\dT")


def record(message: str, *args: object, level: int = logging.INFO, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("trident.test", level, "/srv/app/server.py", 88, message, args, more.pop("exc_info", None))
    made.created = NOON
    made.__dict__.update(more)
    return made


def failure(text: str) -> Any:
    try:
        raise ValueError(text)
    except ValueError:
        return sys.exc_info()


def test_the_default_format_is_tritons() -> None:
    line = TextFormatter().format(record("Started HTTPService at %s:%d", "0.0.0.0", 8000))
    assert line == f'I0101 12:00:00.123456 {os.getpid()} server.py:88] "Started HTTPService at 0.0.0.0:8000"'


def test_the_iso_format_has_the_time_first() -> None:
    line = TextFormatter(iso8601=True).format(record("hello", level=logging.WARNING))
    assert line == f'2025-01-01T12:00:00Z W {os.getpid()} server.py:88] "hello"'


@pytest.mark.parametrize(
    ("level", "letter", "name"),
    [
        (verbose_level(3), "I", "VERBOSE"),
        (logging.DEBUG, "I", "VERBOSE"),
        (logging.INFO, "I", "INFO"),
        (logging.WARNING, "W", "WARNING"),
        (logging.ERROR, "E", "ERROR"),
        (logging.CRITICAL, "E", "ERROR"),
    ],
)
def test_each_level_has_a_letter_and_a_name(level: int, letter: str, name: str) -> None:
    assert TextFormatter().format(record("x", level=level)).startswith(f"{letter}0101 ")
    assert json.loads(JsonFormatter().format(record("x", level=level)))["level"] == name


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("formatter", [TextFormatter(), TextFormatter(iso8601=True), JsonFormatter()])
def test_a_message_is_one_line_whatever_it_contains(formatter: logging.Formatter, attack: str) -> None:
    for event in (record(attack), record("model '%s' is not found", attack)):
        assert len(formatter.format(event).splitlines()) == 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_traceback_forges_no_event(attack: str) -> None:
    text = TextFormatter().format(record("it broke", level=logging.ERROR, exc_info=failure(attack)))
    first, *others = text.splitlines()
    assert first.endswith('"it broke"')
    assert any("Traceback" in line for line in others)
    assert all(line.startswith("    ") for line in others)
    assert not any(EVENT.match(line) for line in others)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_traceback_is_a_field_of_a_json_event(attack: str) -> None:
    text = JsonFormatter().format(record("it broke", level=logging.ERROR, exc_info=failure(attack)))
    assert len(text.splitlines()) == 1
    event = json.loads(text)
    assert event["traceback"].startswith("Traceback")
    assert event["traceback"].endswith(f"ValueError: {attack}")


def test_a_table_follows_its_heading_unchanged() -> None:
    text = TextFormatter().format(record("models", table="+---+\n| a |\n+---+"))
    assert text.split("\n")[1:] == ["+---+", "| a |", "+---+"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_table_forges_no_event(attack: str) -> None:
    lines = TextFormatter().format(record("models", table=attack)).splitlines()
    assert all(line[0] in "|+" for line in lines[1:])


def test_messages_are_unquoted_on_request() -> None:
    line = TextFormatter(escape=False).format(record('say "hi"'))
    assert line.endswith('server.py:88] say "hi"')


def test_a_json_event_has_its_fields_and_those_of_the_caller() -> None:
    event = json.loads(
        JsonFormatter().format(record("it is %s", "so", model="digits", code="Internal", hint=None, count=3))
    )
    assert event == {
        "time": "2025-01-01T12:00:00.123456Z",
        "level": "INFO",
        "logger": "trident.test",
        "message": "it is so",
        "file": "server.py",
        "line": 88,
        "pid": os.getpid(),
        "model": "digits",
        "code": "Internal",
        "count": 3,
    }


def test_a_field_of_the_caller_does_not_replace_one_of_the_event() -> None:
    event = json.loads(JsonFormatter().format(record("true", level=logging.ERROR, time="never", line=0)))
    assert (event["time"], event["line"]) == ("2025-01-01T12:00:00.123456Z", 88)


def test_a_value_of_any_type_can_be_a_field() -> None:
    event = json.loads(
        JsonFormatter().format(record("x", bad=float("nan"), ratio=0.5, path=os.PathLike, text="\udc80"))
    )
    assert (event["bad"], event["ratio"]) == ("nan", 0.5)
    assert event["path"] == str(os.PathLike)


def test_the_stack_of_an_event_is_written() -> None:
    text = TextFormatter().format(record("here", stack_info="Stack (most recent call last):\n  File x"))
    assert text.split("\n")[1:] == ["    Stack (most recent call last):", "      File x"]
