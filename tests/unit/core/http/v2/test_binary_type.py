from __future__ import annotations

import pytest

from trident.core.http.v2_request import BinaryType

BINARY = "application/vnd.some-triton.binary+json"
TYPE = BinaryType(BINARY)


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        (f"{BINARY};json-header-size=42", "42"),
        (f"{BINARY};json-header-size=-1", "-1"),
        (f"{BINARY};json-header-size=x;y=1", "x;y=1"),
        (f"{BINARY};json-header-size=", ""),
        (f"{BINARY}; json-header-size=42", "42"),
        (f'{BINARY.upper()}; charset=utf-8; JSON-Header-Size="7"', "7"),
        (BINARY, ""),
        (f"x{BINARY};json-header-size=42", ""),
        (f"text/csv, {BINARY};json-header-size=42", ""),
        (f'text/csv;x="{BINARY}"', ""),
        ("application/json", None),
        ("", None),
        ("\xff;;;", None),
    ],
)
def test_size_text_reads_the_length_in_a_content_type(content_type: str, text: str | None) -> None:
    assert TYPE.size_text(content_type) == text


def test_size_text_reads_its_own_type() -> None:
    assert TYPE.size_text(TYPE.of(123)) == "123"
