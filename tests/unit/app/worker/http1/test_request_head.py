"""Request heads: plain ones are parsed as gunicorn's own parser parses them."""

from __future__ import annotations

from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader
from hypothesis import example, given
from hypothesis import strategies as st

from app.worker.http1.refusal import Refusal
from app.worker.http1.request_head import RequestHead, RequestHeadParser

LIMITS = {"limit_request_line": 8190, "limit_request_fields": 100, "limit_request_field_size": 8190}
CFG = Config()
CFG.set("http_parser", "python")
TOKENS = st.sampled_from(
    rb"""GET|POST| |  |/|/a|//a|/%00|/a?b=c#d|*|HTTP/1.1|HTTP/1.0|Host|Content-Length|Transfer-Encoding|X_Y|X-Y|:|: | :
    |5|+5|chunked|Expect|100-continue|Connection|close|keep-alive|a|,""".replace(b"\n    ", b"").split(b"|")
)
BREAKS = st.sampled_from([b"\r\n", b"\n", b"\r", b"\t", b"\x00", b"\xff"])
LINES = st.sampled_from(
    b"""Host: a|host: b|Content-Length: 5|content-length: 005|Content-Length: 5, 5|X-Y: 1|x-y:2|X_Y: 1| folded|Bad : 1
    |Connection: close|Connection: keep-alive|Connection: Foo, Close|Transfer-Encoding: chunked|Expect: 100-continue
    |Upgrade: h2c|Empty:|: none|X: \xe9\t y """.replace(b"\n    ", b"").split(b"|")
)
FIRST = st.sampled_from(
    b"""GET /a?b=%20c HTTP/1.1|POST / HTTP/1.1|HEAD /%2e%ff HTTP/1.1|GET /a HTTP/1.0|GET  / HTTP/1.1|GET //a HTTP/1.1
    |GET http://a/b HTTP/1.1|CONNECT a:1 HTTP/1.1|OPTIONS * HTTP/1.1|GET /#f HTTP/1.1""".replace(b"\n    ", b"").split(
        b"|"
    )
)


def parser(max_body_size: int = 2**31 - 1) -> RequestHeadParser:
    return RequestHeadParser({"wsgi.url_scheme": "http"}, LIMITS, frozenset({"HTTP_X_FORWARDED_PROTO"}), max_body_size)


def gunicorn_environ(raw: bytes) -> tuple[dict[str, Any], Request]:
    request = Request(CFG, IterUnreader([raw]), ("1.2.3.4", 5))
    _, environ = wsgi.create(request, None, ("1.2.3.4", 5), ("h", 80), CFG)
    return environ, request


def assert_agrees(raw: bytes) -> None:
    head = parser().parse(raw)
    if head is None:
        return
    environ, request = gunicorn_environ(raw)
    keys = {
        "REQUEST_METHOD",
        "RAW_URI",
        "PATH_INFO",
        "QUERY_STRING",
        "SERVER_PROTOCOL",
        "CONTENT_TYPE",
        "CONTENT_LENGTH",
    }
    for key in keys | {key for key in {*environ, *head.environ} if key.startswith("HTTP_")}:
        assert head.environ.get(key) == environ.get(key), key
    assert head.length == request.body.reader.length
    assert not (head.keep_alive and request.should_close())


@given(st.lists(TOKENS | BREAKS, max_size=25))
def test_a_plain_head_is_valid_for_gunicorn(tokens: list[bytes]) -> None:
    assert_agrees(b"".join(tokens) + b"\r\n\r\n")


@given(FIRST, st.lists(LINES, max_size=5))
@example(b"GET / HTTP/1.1", [b"Content-Length: 5", b"Content-Length: 5"])
@example(b"GET / HTTP/1.1", [b"X-Y: 1", b"X_Y: 2"])
def test_a_plain_head_is_parsed_as_gunicorn_parses_it(first: bytes, lines: list[bytes]) -> None:
    assert_agrees(b"\r\n".join([first, *lines]) + b"\r\n\r\n")


def test_a_usual_head_is_plain() -> None:
    raw = b"POST /v2/models/m/infer?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\nX-A: 1\r\nX-A: 2\r\n\r\n"
    head = parser().parse(raw)
    assert head is not None
    assert (head.length, head.keep_alive, head.is_head_request) == (7, True, False)
    assert head.environ["HTTP_X_A"] == "1,2"
    assert head.environ["PATH_INFO"] == "/v2/models/m/infer"


@pytest.mark.parametrize(
    "line",
    [b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Upgrade: h2c", b"X-Forwarded-Proto: s"],
)
def test_an_unusual_head_is_not_plain(line: bytes) -> None:
    assert parser().parse(b"GET / HTTP/1.1\r\n" + line + b"\r\n\r\n") is None


def test_a_name_with_an_underscore_is_not_the_one_with_a_hyphen() -> None:
    head = parser().parse(b"GET / HTTP/1.1\r\nA_B: 1\r\nA-b: 2\r\nContent_Length: 3\r\n\r\n")
    assert head is not None
    assert (head.environ["HTTP_A_B"], head.length) == ("2", 0)
    assert head.environ["trident.headers"] == [("A_B", "1"), ("A-b", "2"), ("Content_Length", "3")]


def test_equal_heads_are_parsed_once_and_few_are_remembered() -> None:
    heads = parser()
    first = heads.parse(b"GET / HTTP/1.1\r\n\r\n")
    assert heads.known == {b"GET / HTTP/1.1\r\n\r\n": first}
    for number in range(2000):
        assert isinstance(heads.parse(b"GET /%d HTTP/1.1\r\n\r\n" % number), RequestHead)
    heads.parse(b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n")
    assert len(heads.known) <= 512
    assert max(map(len, heads.known)) <= 2048


def test_a_body_over_the_limit_is_refused_each_time() -> None:
    heads = parser(max_body_size=10)
    for _ in range(2):
        with pytest.raises(Refusal, match="10 bytes"):
            heads.parse(b"POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n")


def test_a_part_of_a_head_is_incomplete() -> None:
    assert parser().is_incomplete(b"GET / HT")
    assert not parser().is_incomplete(b"GET / HTTP/1.1\nHost: a\n\n")


def test_a_part_that_no_bytes_can_complete_is_an_error_of_the_parser() -> None:
    with pytest.raises(ValueError, match="Invalid HTTP request"):
        parser().is_incomplete(b"\x16\x03\x01")
