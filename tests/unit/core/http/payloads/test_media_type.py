from __future__ import annotations

import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.payloads.formats import choose, parse_accept, parse_media_type

SUPPORTED = ("application/json", "text/csv", "application/x-npy")


def test_a_content_type_has_an_essence_and_parameters() -> None:
    media_type = parse_media_type(' Text/CSV ; charset="UTF-8"; Header=absent;')
    assert media_type.essence == "text/csv"
    assert media_type.parameters == {"charset": "UTF-8", "header": "absent"}


@pytest.mark.parametrize("text", ["", "csv", "text/", "/csv", "text/csv; charset", "text/csv, a/b", "*/*", "text/\x00"])
def test_a_malformed_content_type_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the Content-Type header is not understood"):
        parse_media_type(text)


def test_a_long_header_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has 2009 characters, at most 1024"):
        parse_media_type("text/csv;" + " " * 2000)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("TEXT/CSV; header=absent", "text/csv"),
        ("text/*", "text/csv"),
        ("image/png, text/csv", "text/csv"),
        ("application/x-npy, text/csv", "application/x-npy"),
        ("text/csv;q=0.5, application/x-npy;q=0.9", "application/x-npy"),
        ("application/json;q=0, */*", "text/csv"),
        ("*/*;q=0.1, text/csv;q=0.2", "text/csv"),
        ("text/csv;q=0, text/*", None),
        ("image/png", None),
        ("*/*;q=0", None),
        (", ,text/csv ,", "text/csv"),
        ("application/*;q=0.3, application/x-npy;q=0.2", "application/json"),
        ("*", "application/json"),
        ("*;q=.1 , text/csv;q=.2", "text/csv"),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "application/json"),
        ("text/csv;q=0.1234", "text/csv"),
        ("text/csv;q=1.0000, */*;q=0.", "text/csv"),
        ("text/csv;q=2, application/x-npy;q=.1", "application/x-npy"),
        ("json, */csv, text/csv", "text/csv"),
        ('text/csv;a="b, application/x-npy', "application/x-npy"),
    ],
)
def test_the_preferred_supported_type_is_chosen(accept: str | None, chosen: str | None) -> None:
    assert choose(accept, SUPPORTED) == chosen


@pytest.mark.parametrize(
    "text", ["json", "text/csv;q=2", "text/csv;q=a", "text/csv;q=.", "*/csv", "a/b c/d", ";", "**", "json, xml"]
)
def test_a_malformed_accept_header_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the Accept header is not understood"):
        parse_accept(text)
