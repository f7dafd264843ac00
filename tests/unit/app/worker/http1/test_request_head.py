"""Request heads: what gunicorn's own parser refuses is refused, and the rest has the environ that gunicorn makes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import errors, wsgi
from gunicorn.http.body import ChunkedReader
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader
from hypothesis import example, given
from hypothesis import strategies as st

from trident.app.worker.http1.request import MAX_CHUNKS, BadHttp, ChunkedBody, RequestHeadParser

CFG = Config()
CFG.set("http_parser", "python")
CFG.set("header_map", "drop")  # names with underscores
KEYS = ("REQUEST_METHOD", "RAW_URI", "PATH_INFO", "QUERY_STRING", "SERVER_PROTOCOL", "CONTENT_TYPE", "CONTENT_LENGTH")
# What gunicorn accepts and is refused here.
STRICTER = (
    "CONNECT",
    "ransfer-Encoding' is there twice",
    "target of the request",
    "Transfer-Encoding is not 'chunked'",
    "'100-continue,",
)
TOKENS = st.sampled_from(
    rb"""GET|POST| |  |/|/a|//a|/%00|/a?b=c#d|*|HTTP/1.1|HTTP/1.0|Host|Content-Length|Transfer-Encoding|X_Y|X-Y|:|: | :
    |5|+5|chunked|Expect|100-continue|Connection|close|keep-alive|a|,""".replace(b"\n    ", b"").split(b"|")
)
BREAKS = st.sampled_from([b"\r\n", b"\n", b"\r", b"\t", b"\x00", b"\xff"])
LINES = st.sampled_from(
    b"""Host: a|host: b|Content-Length: 5|content-length: 005|Content-Length: 5, 5|X-Y: 1|x-y:2|X_Y: 1| folded|Bad : 1
    |Connection: close|Connection: keep-alive|Connection: Foo, Close|Transfer-Encoding: chunked|Expect: 100-continue
    |Upgrade: h2c|Empty:|: none|X: \xe9\t y |Transfer-Encoding: xchunked|Transfer-Encoding: gzip|Expect: x
    |Content_Length: 3|Content-Length: \xb2|Content-Length:\x0b5|Transfer-Encoding: chunked, chunked""".replace(
        b"\n    ", b""
    ).split(b"|")
)
FIRST = st.sampled_from(
    b"""GET /a?b=%20c HTTP/1.1|POST / HTTP/1.1|HEAD /%2e%ff HTTP/1.1|GET /a HTTP/1.0|GET  / HTTP/1.1|GET //a HTTP/1.1
    |GET http://a/b HTTP/1.1|OPTIONS * HTTP/1.1|GET * HTTP/1.1|GET /a?b?c#f#g HTTP/1.1|get / HTTP/1.1|GET a:1 HTTP/1.1
    |GET / HTTP/1.2|GET / HTTP/2.0|GET / HTTP/1.10|GET /\xc3 HTTP/1.1""".replace(b"\n    ", b"").split(b"|")
)


def parser() -> RequestHeadParser:
    return RequestHeadParser({"wsgi.url_scheme": "http"}, max_line=8190, max_fields=100, max_field=8190)


def assert_agrees(raw: bytes) -> None:
    request: Any = None
    with suppress(errors.ParseException, errors.NoMoreData):
        request = Request(CFG, IterUnreader([raw]), ("1.2.3.4", 5))
    try:
        head = parser().parse(raw)
    except BadHttp as refusal:
        head = None
        fault = refusal.message
    if head is None or request is None:
        assert head is None, "gunicorn refuses it"
        assert request is None or any(text in fault for text in STRICTER), fault
        return
    expects_continue, request._expected_100_continue = request._expected_100_continue, False
    _, environ = wsgi.create(request, None, ("1.2.3.4", 5), ("h", 80), CFG)
    reader = request.body.reader
    assert (head.is_chunked, head.expects_continue) == (isinstance(reader, ChunkedReader), expects_continue)
    assert head.length == (0 if head.is_chunked else reader.length)
    assert not (head.keep_alive and request.should_close())
    if head.is_chunked:
        del head.environ["CONTENT_LENGTH"]
    for key in {*KEYS, *(key for key in {*environ, *head.environ} if key.startswith("HTTP_"))}:
        assert head.environ.get(key) == environ.get(key), key


@given(st.lists(TOKENS | BREAKS, max_size=25))
def test_arbitrary_head_is_judged_as_by_gunicorn(tokens: list[bytes]) -> None:
    assert_agrees(b"".join(tokens).split(b"\r\n\r\n")[0] + b"\r\n\r\n")


@given(FIRST, st.lists(LINES, max_size=5))
@example(b"GET / HTTP/1.1", [b"Content-Length: 5", b"Content-Length: 5"])
@example(b"GET / HTTP/1.1", [b"X-Y: 1", b"X_Y: 2"])
@example(b"GET / HTTP/1.0", [b"Transfer-Encoding: chunked"])
@example(b"GET / HTTP/1.0", [b"Expect: 100-continue"])
def test_a_head_of_usual_lines_is_parsed_as_by_gunicorn(first: bytes, lines: list[bytes]) -> None:
    assert_agrees(b"\r\n".join([first, *lines]) + b"\r\n\r\n")


def test_header_names_with_underscore_and_hyphen_differ() -> None:
    head = parser().parse(b"GET / HTTP/1.1\r\nA_B: 1\r\nA-b: 2\r\nContent_Length: 3\r\n\r\n")
    assert (head.environ["HTTP_A_B"], head.length) == ("2", 0)
    assert head.environ["trident.headers"] == [("A_B", "1"), ("A-b", "2"), ("Content_Length", "3")]


def test_equal_heads_are_parsed_once_and_the_memo_is_bounded() -> None:
    heads = parser()
    first = heads.parse(b"GET / HTTP/1.1\r\n\r\n")
    assert heads.known == {b"GET / HTTP/1.1\r\n\r\n": first}
    for number in range(2000):
        heads.parse(b"GET /%d HTTP/1.1\r\n\r\n" % number)
    heads.parse(b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n")
    assert len(heads.known) <= 512
    assert max(map(len, heads.known)) <= 2048


def test_unsupported_body_framing_is_refused_each_time() -> None:
    heads = parser()
    for _ in range(2):
        with pytest.raises(BadHttp, match="out of range"):
            heads.parse(b"POST / HTTP/1.1\r\nContent-Length: 2147483648\r\n\r\n")


def test_any_prefix_of_a_valid_head_is_accepted() -> None:
    fields = b"".join(b"A%d: %b\r\n" % (number, b"b" * 500) for number in range(100))
    head = b"\r\nM-SEARCH /a?b HTTP/1.1\r\n" + fields + b"\r\n"
    for end in (*range(100), *range(len(head) - 100, len(head) - 1)):
        parser().check_part(head[:end])
    assert len(parser().parse(head).environ["trident.headers"]) == 100


@pytest.mark.parametrize(
    ("part", "status"),
    [
        (b"\x16\x03\x01", 400),
        (b"get", 400),
        (b"GET  ", 400),
        (b"GET / HTTX", 400),
        (b"GET /\r\nHost: a", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\nHost", 400),
        (b"GET /" + b"a" * 8190, 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101, 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 8190, 431),
    ],
)
def test_hopeless_partial_head_is_refused(part: bytes, status: int) -> None:
    with pytest.raises(BadHttp) as refusal:
        parser().check_part(part)
    assert refusal.value.status == status


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (b"1\r\nx\r\n" * (MAX_CHUNKS + 1), "65536 non-empty chunks"),
        (b"65\r\n", "100 bytes"),
        (b"60\r\n" + b"x" * 96 + b"\r\n5\r\n", "100 bytes"),
        (b"zz\r\n", "hexadecimal"),
        (b"\r\n", "hexadecimal"),
        (b"+1\r\n", "hexadecimal"),
        (b"0x1\r\n", "hexadecimal"),
        (b"1_0\r\n", "hexadecimal"),
        (b"1 \r\n", "hexadecimal"),
        (b"0" * 17 + b"\r\n", "hexadecimal"),
        (b"1;a\rb\r\n", "hexadecimal"),
        (b"1;=\r\n", "hexadecimal"),
        (b"1\nx", "LF alone"),
        (b"1;" + b"a" * 9000, "maximum of 8190 bytes"),
        (b"1\r\nxy", "longer than its size"),
        (b"1\r\nx\n", "longer than its size"),
        (b"0\r\nX: a\n\r\n", "LF alone|malformed"),
        (b"0\r\nX : a\r\n", "malformed"),
        (b"0\r\nX: a\0\r\n", "malformed"),
        (b"0\r\n X: a\r\n", "malformed"),
        (b"0\r\ncontent-length: 3\r\n", "not allowed"),
        (b"0\r\nTransfer-Encoding: chunked\r\n", "not allowed"),
        (b"0\r\n" + b"X: a\r\n" * 101, "too many"),
    ],
)
def test_malformed_chunks_and_those_over_a_limit_are_refused(chunks: bytes, message: str) -> None:
    body = ChunkedBody(1 << 20 if "65536" in message else 100)
    with pytest.raises(BadHttp, match=message):
        body.feed(chunks)
    if len(chunks) < 1000:  # as soon as the last byte of a refused line is there
        body = ChunkedBody(100)
        with pytest.raises(BadHttp, match=message):
            [body.feed(bytes([byte])) for byte in chunks]


def test_as_many_chunks_as_allowed_are_taken() -> None:
    body = ChunkedBody(1 << 20)
    assert body.feed(b"1\r\nx\r\n" * MAX_CHUNKS + b"0\r\n\r\n")
    assert len(body.content) == MAX_CHUNKS
