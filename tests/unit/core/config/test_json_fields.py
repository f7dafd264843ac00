"""JSON that people write: mistakes name the field, what was expected, and the nearest that is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.config.json_fields import Fields, Malformed, nearest, read_json, shown


def mistake(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(Malformed) as caught:
        call()
    return str(caught.value), caught.value.hint


def test_an_unknown_field_names_the_nearest() -> None:
    known = ("tolerance", "request")
    assert mistake(lambda: Fields({"tolerence": 1}, "", known)) == (
        "tolerence: unknown field",
        "did you mean 'tolerance'?",
    )
    assert mistake(lambda: Fields({"x": 1}, "a[0]", known)) == (
        "a[0].x: unknown field",
        "known are: tolerance, request",
    )


def test_fields_have_their_types() -> None:
    fields = Fields({"t": 1, "l": {}, "i": [0, True], "n": [-1], "o": [], "two": [{"name": "a"}, {"name": "a"}]}, "p", [
        "t", "l", "i", "n", "o", "two", "none",
    ])  # fmt: skip
    assert mistake(lambda: fields.text("t"))[0] == "p.t: expected a string, got 1"
    assert mistake(lambda: fields.text("none"))[0] == "p.none: missing"
    assert mistake(lambda: fields.elements("l"))[0] == "p.l: expected a list, got an object"
    assert mistake(lambda: fields.integers("i"))[0] == "p.i[1]: expected an integer that is not negative, got true"
    assert mistake(lambda: fields.integers("n"))[0] == "p.n[0]: expected an integer that is not negative, got -1"
    assert mistake(lambda: fields.section("o", ()))[0] == "p.o: expected an object, got a list"
    assert mistake(lambda: fields.sections("two", ["name"]))[0] == "p.two[1].name: 'a' stands twice in p.two"
    assert mistake(lambda: Fields(None, "", ()))[0] == "the document: expected an object, got null"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "field 'a' stands twice in one object"),
        (b'{"a": NaN}', "no JSON: NaN is no JSON number"),
        (b"[-Infinity]", "no JSON: -Infinity is no JSON number"),
        (b"[1e400]", "number 1e400 is out of range"),
        (b"\xff{}", "byte 0 is not UTF-8"),
        (b'{"a": ', "no JSON: Expecting value: line 1 column 7 (char 6)"),
        (b"", "no JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 100_000, "no JSON that can be read: nested too deep"),
    ],
)
def test_what_is_no_json(content: bytes, message: str) -> None:
    assert mistake(lambda: read_json(content))[0] == message


def test_an_integer_of_too_many_digits_is_refused_and_not_computed() -> None:
    assert mistake(lambda: read_json(b"1" * 100_000))[0].startswith("no JSON: Exceeds the limit")


def test_values_are_shown_short() -> None:
    values: list[object] = [None, True, 1.5, "a\n", [1], {}]
    assert [shown(value) for value in values] == ["null", "true", "1.5", r"'a\n'", "a list", "an object"]
    assert len(shown("x" * 1000)) < 70
    assert len(shown(10**1000)) < 70


def test_nearest() -> None:
    assert nearest("INPUT", ["INPUT0", "MASK"]) == "did you mean 'INPUT0'?"
    assert nearest("x", ["INPUT0", "MASK"]) == "known are: INPUT0, MASK"
