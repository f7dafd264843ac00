from __future__ import annotations

import math

import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.payloads.payload import parse_json


def test_nan_and_infinity_are_numbers() -> None:
    nan, infinity = parse_json(b"[NaN, -Infinity]")
    assert math.isnan(nan)
    assert infinity == -math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "line 2: failed to parse the request JSON buffer: .* at 0"),
        (b"[1,]", "line 2: failed to parse the request JSON buffer: trailing comma .* at 2"),
        (b"[NaN,]", "line 2: failed to parse the request JSON buffer: .* at [45]"),
        (b'["\xff"]', "line 2: failed to parse the request JSON buffer: .*UTF-8"),
        (b'[NaN, "\xff"]', "line 2: failed to parse the request JSON buffer: "),
        (b"[" * 1000, r"line 2: JSON nesting depth exceeds maximum allowed limit \(100\)"),
        (b"[" * 2000, r"line 2: JSON nesting depth exceeds maximum allowed limit \(100\)"),
        (b"[NaN," + b"[" * 200000, r"line 2: JSON nesting depth exceeds maximum allowed limit \(100\)"),
    ],
)
def test_an_error_has_a_reason_and_an_offset(text: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match="^" + message):
        parse_json(text, "line 2")


def test_without_a_location_the_text_begins_with_the_reason() -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to parse the request JSON buffer: "):
        parse_json(b"{")
