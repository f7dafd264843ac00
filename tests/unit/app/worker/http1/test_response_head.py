from __future__ import annotations

import pytest

from trident.app.worker.http1.response import ResponseHead, ResponseHeads


def test_a_head_is_rendered_and_its_length_remembered() -> None:
    head = ResponseHead("200 OK", [("Content-Type", "a/b"), ("content-length", "7"), ("Transfer-Encoding", "chunked")])
    assert head.start == b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\ncontent-length: 7\r\n"
    assert (head.declared, head.closes, head.omits_body) == (7, False, False)


def test_the_applications_connection_close_is_remembered() -> None:
    assert ResponseHead("200 OK", [("Connection", "Close")]).closes


def test_a_204_has_no_length() -> None:
    head = ResponseHead("204 No Content", [("Content-Length", "0")])
    assert (head.start, head.omits_body) == (b"HTTP/1.1 204 No Content\r\n", True)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        ("OK", []),
        ("200OK", []),
        ("200 OK\r\nA: b", []),
        ("200 OK", [("A", "b\r\nC: d")]),
        ("200 OK", [("A", "b\nC: d")]),
        ("200 OK", [("Content-Length", "many")]),
    ],
)
def test_an_invalid_head_is_refused(status: str, headers: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match=r"invalid|line break"):
        ResponseHead(status, headers)


def test_equal_heads_are_rendered_once_and_few_are_remembered() -> None:
    heads = ResponseHeads()
    first = heads.head_for("200 OK", [("A", "b")])
    assert heads.head_for("200 OK", [("A", "b")]) is first
    for number in range(600):
        heads.head_for("200 OK", [("A", str(number))])
    assert heads.head_for("200 OK", [("A", "b")]) is not first
