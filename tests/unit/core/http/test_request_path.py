from __future__ import annotations

import pytest

from trident.core.http.reply import path_of, request_path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v2", "/v2"),
        ("/v2?a=/b", "/v2"),
        ("/v2#part", "/v2"),
        ("/v2/models/a%2Fb", "/v2/models/a%2Fb"),
        ("//v2", "//v2"),
        ("/v2//models/", "/v2//models/"),
        ("http://host:8000/v2?x", "/v2"),
        ("http://host", "/"),
        ("*", "*"),
        ("", "/"),
        ("/mod\xc3\xa9", "/modé"),
        ("/mod\xff", "/mod\ufffd"),
        ("/mod\u20ac", "/mod?"),
    ],
)
def test_path_of_takes_the_path_from_a_target(target: str, path: str) -> None:
    assert path_of(target) == path


def test_the_raw_target_is_preferred_to_the_decoded_path() -> None:
    assert request_path({"RAW_URI": "/a%20b?c", "PATH_INFO": "/a b"}) == "/a%20b"
    assert request_path({"PATH_INFO": "/a b"}) == "/a b"
