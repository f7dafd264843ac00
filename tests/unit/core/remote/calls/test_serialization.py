"""Values of the Engine protocol to JSON and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trident.core.inference.tensors import BY_NAME, DATATYPES, Datatype
from trident.core.remote.calls import from_plain, read_plain, to_plain, write_plain


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    inner: Inner
    others: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    by_colour: Mapping[Colour, int] = field(default_factory=dict)
    maybe: Inner | None = None
    ratio: float = 0.0


def over_the_wire(value: object, hint: Any) -> Any:
    return from_plain(orjson.loads(orjson.dumps(to_plain(value))), hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (None, None.__class__),
        ("", str),
        ("ä\0", str),
        (-(2**63), int),
        (2**64 - 1, int),
        (True, bool),
        (1.5, float),
        (7, float),
        (math.inf, float),
        (-math.inf, float),
        (b"", bytes),
        (bytes(range(256)), bytes),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (BY_NAME["BF16"], Datatype),
        ((1, 2), tuple[int, ...]),
        ((), tuple[int, ...]),
        ((1, "x"), tuple[int, str]),
        ((), tuple[()]),
        ([1, None], list[int | None]),
        ({"a": (1,)}, dict[str, tuple[int, ...]]),
        ({-3: "a", 0: "b"}, dict[int, str]),
        ({Level.LOW: "a"}, dict[Level, str]),
        ({"a": "text", "b": b"bytes"}, dict[str, str | bytes]),
        ([1, True, "x", 0.5], list[str | int | bool | float]),
        ({"a": [1, {"b": None}]}, dict[str, Any]),
        ({"a": [1, {"b": None}]}, dict[str, object]),
    ],
)
def test_a_value_survives_the_way(value: object, hint: Any) -> None:
    found = over_the_wire(value, hint)
    assert found == value
    assert type(found) is type(value)


def test_members_keep_their_types() -> None:
    found = over_the_wire([1, True, 1.0], list[int | bool | float])
    assert [type(each) for each in found] == [int, bool, float]


def test_nan_stays_nan() -> None:
    assert math.isnan(over_the_wire(math.nan, float))


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_a_datatype_is_the_row_of_the_table_again(datatype: Datatype) -> None:
    assert over_the_wire(datatype, Datatype) is datatype


def test_dataclasses_travel_as_lists_of_their_fields() -> None:
    value = Outer(
        inner=Inner(name="a", dims=(1, -1)),
        others=(Inner(name="b"),),
        by_name={"c": Inner(name="c", dims=(3,))},
        by_colour={Colour.BLUE: 2},
        maybe=Inner(name="d"),
        ratio=0.5,
    )
    assert to_plain(value) == [["a", [1, -1]], [["b", []]], {"c": ["c", [3]]}, {"blue": 2}, ["d", []], 0.5]
    assert over_the_wire(value, Outer) == value
    assert over_the_wire(Outer(inner=Inner(name="")), Outer) == Outer(inner=Inner(name=""))


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, Inner, {(1, 2): 3}, {True: 1}, {"a": [bytearray(b"x")]}])
def test_writing_refuses_types_that_cannot_be_sent(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be"):
        to_plain(value)


@pytest.mark.parametrize("hint", [complex, set[int], Inner | complex, dict[float, int] | set[str]])
def test_a_hint_of_a_type_that_cannot_be_sent_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        from_plain(1, hint)


@pytest.mark.parametrize(
    ("plain", "hint", "text"),
    [
        ("1", int, "the value is no int"),
        (True, int, "the value is no int"),
        (1.0, int, "the value is no int"),
        (1, bool, "the value is no bool"),
        (1, str, "the value is no str"),
        (None, str, "the value is no str"),
        ("1", float, "the value is no float"),
        (True, float, "the value is no float"),
        (0, None.__class__, "the value is no null"),
        ("x", bytes, "the value is no bytes"),
        ({"base64": "?"}, bytes, "the value is no bytes"),
        ({"base64": "YQ=="[:3]}, bytes, "the value is no bytes"),
        ({"base64": "YQ==", "more": 1}, bytes, "the value is no bytes"),
        ({"base64": 1}, bytes, "the value is no bytes"),
        ("green", Colour, "the value is no Colour"),
        (["red"], Colour, "the value is no Colour"),
        (True, Level, "the value is no Level"),
        (1.0, Level, "the value is no Level"),
        ("FLOAT", Datatype, "the value is no datatype"),
        ({}, Datatype, "the value is no datatype"),
        ({}, list[int], "the value is no list"),
        ([1, "2"], list[int], r"\[1\] is no int"),
        ("ab", tuple[str, ...], "the value is no list"),
        ([1], tuple[int, int], "the value is no list of 2"),
        ([1, 2, 3], tuple[int, int], "the value is no list of 2"),
        ([1], tuple[()], "the value is no list of 0"),
        ([1, "x"], tuple[int, int], r"\[1\] is no int"),
        ([], dict[str, int], "the value is no object"),
        ({"a": "b"}, dict[str, int], r"\['a'\] is no int"),
        ({"01": "b"}, dict[int, str], r"\['01'\] is no key of type int"),
        ({"x": "b"}, dict[int, str], r"\['x'\] is no key of type int"),
        ({"x": 1}, dict[Colour, int], r"\['x'\] is no key of type Colour"),
        ({"base65": ""}, str | bytes, r"the value is no str \| bytes"),
        ({}, Inner, "the value is no list of the 2 fields of Inner"),
        (["a"], Inner, "the value is no list of the 2 fields of Inner"),
        (["a", [], 1], Inner, "the value is no list of the 2 fields of Inner"),
        (["a", [0, None]], Inner, r"dims\[1\] is no int"),
        ([["a", []], [["b", []], [1, []]], {}, {}, None, 0], Outer, r"others\[1\]\.name is no str"),
        ([["a", []], [], {"k": ["c", [""]]}, {}, None, 0], Outer, r"by_name\['k'\]\.dims\[0\] is no int"),
        ([["a", []], [], {}, {}, [1, []], 0], Outer, r"maybe\.name is no str"),
    ],
)
def test_reading_names_the_part_that_does_not_fit(plain: Any, hint: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        from_plain(plain, hint)


def test_an_error_shortens_a_long_key() -> None:
    with pytest.raises(ValueError, match="is no int") as caught:
        from_plain({"k" * 10_000: "x"}, dict[str, int])
    assert len(str(caught.value)) < 100


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40)
@given(ANYTHING)
@pytest.mark.parametrize("hint", [Outer, dict[str, str | bytes], tuple[Inner, ...], Level, dict[Colour, int]])
def test_any_input_is_read_or_refused(hint: Any, plain: Any) -> None:
    try:
        found = from_plain(plain, hint)
    except ValueError:
        return
    assert from_plain(to_plain(found), hint) == found


@settings(max_examples=40)
@given(ANYTHING)
def test_plain_values_are_read_as_they_were_written(plain: Any) -> None:
    assert read_plain(write_plain(plain)) == plain


@pytest.mark.parametrize(
    "plain",
    ["half a pair \ud800", {"\udcff": ["\udc80"]}, [2**70, -(2**70)], [[[]] * 3, "x"]],
)
def test_values_that_orjson_refuses_are_written(plain: Any) -> None:
    assert read_plain(write_plain(plain)) == plain


@pytest.mark.parametrize("plain", [[1, "x"], ["\ud800"], ""])
@pytest.mark.parametrize("padding", [0, 1, 15])
def test_reading_ignores_the_padding_of_a_frame(plain: Any, padding: int) -> None:
    content = write_plain(plain) + b" " * padding
    assert read_plain(memoryview(content)) == plain
    assert read_plain(bytearray(content)) == plain


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b" ", b"[1", b"[1]" + bytes(16), b"\xff", b" \xff", b" [" * 200_000, b"[" * 200_000, b"1 2", b" 1 2"],
)
def test_reading_refuses_malformed_json(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the texts are those of three parsers)
        read_plain(content)
