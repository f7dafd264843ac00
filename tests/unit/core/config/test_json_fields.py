"""Strict reading of JSON: errors name the field, the expected value and the nearest known name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trident.core.config.json_fields import Fields, Malformed, nearest, read_json, shown


def mistake(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(Malformed) as caught:
        call()
    return str(caught.value), caught.value.hint


def test_unknown_field_names_the_nearest() -> None:
    known = ("tolerance", "request")
    assert mistake(lambda: Fields({"tolerence": 1}, "", known)) == (
        "tolerence: unknown field",
        "did you mean 'tolerance'?",
    )
    assert mistake(lambda: Fields({"x": 1}, "a[0]", known)) == (
        "a[0].x: unknown field",
        "known are: tolerance, request",
    )


def test_field_of_another_type_is_refused() -> None:
    fields = Fields({"t": 1, "l": {}, "i": [0, True], "n": [-1], "o": [], "two": [{"name": "a"}, {"name": "a"}]}, "p", [
        "t", "l", "i", "n", "o", "two", "none",
    ])  # fmt: skip
    assert mistake(lambda: fields.text("t"))[0] == "p.t: expected a string, got 1"
    assert mistake(lambda: fields.text("none"))[0] == "p.none: missing"
    assert mistake(lambda: fields.elements("l"))[0] == "p.l: expected a list, got an object"
    assert mistake(lambda: fields.integers("i"))[0] == "p.i[1]: expected an integer that is not negative, got true"
    assert mistake(lambda: fields.integers("n"))[0] == "p.n[0]: expected an integer that is not negative, got -1"
    assert mistake(lambda: fields.section("o", ()))[0] == "p.o: expected an object, got a list"
    assert mistake(lambda: fields.sections("two", ["name"]))[0] == "p.two[1].name: 'a' appears twice in p.two"
    assert mistake(lambda: Fields(None, "", ()))[0] == "the document: expected an object, got null"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "field 'a' appears twice in one object"),
        (b'{"a": NaN}', "not JSON: NaN is not a JSON number"),
        (b"[-Infinity]", "not JSON: -Infinity is not a JSON number"),
        (b"[1e400]", "number 1e400 is out of range"),
        (b"\xff{}", "byte 0 is not UTF-8"),
        (b'{"a": ', "not JSON: Expecting value: line 1 column 7 (char 6)"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 100_000, "unreadable JSON: nested too deeply"),
    ],
)
def test_invalid_json_is_refused(content: bytes, message: str) -> None:
    assert mistake(lambda: read_json(content))[0] == message


def test_integer_with_too_many_digits_is_refused() -> None:
    assert mistake(lambda: read_json(b"1" * 100_000))[0].startswith("not JSON: Exceeds the limit")


def test_shown_values_are_short() -> None:
    values: list[object] = [None, True, 1.5, "a\n", [1], {}]
    assert [shown(value) for value in values] == ["null", "true", "1.5", r"'a\n'", "a list", "an object"]
    assert len(shown("x" * 1000)) < 70
    assert len(shown(10**1000)) < 70


def test_nearest_name_or_all_names_are_the_hint() -> None:
    assert nearest("INPUT", ["INPUT0", "MASK"]) == "did you mean 'INPUT0'?"
    assert nearest("x", ["INPUT0", "MASK"]) == "known are: INPUT0, MASK"
