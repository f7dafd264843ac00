from __future__ import annotations

import logging
import re
from collections.abc import Generator
from io import BytesIO
from typing import Any

import pytest

from trident.core.errors import ConfigInvalid
from trident.core.http.application import log_request
from trident.core.http.front_end import INFERENCE_KEY, HttpOptions, InferenceNote, note_inference, server_timing
from trident.core.http.reply import (
    BODY_KEY,
    JSON,
    STATUS_LINES,
    TEXT,
    Environ,
    Reply,
    body_size,
    empty_reply,
    header_of,
    json_reply,
    path_of,
    request_path,
    send,
)
from trident.core.inference.request import CloseReason, InferenceTimes
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer

# --- reply


def started(reply: Reply, environ: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    calls: list[Any] = []
    body = list(send(reply, environ, lambda *arguments: calls.append(arguments)))
    return calls, body


def test_a_status_line_and_an_empty_reply() -> None:
    assert STATUS_LINES[200] == "200 OK"
    assert STATUS_LINES[405] == "405 Method Not Allowed"
    reply = empty_reply(TEXT, 400)
    assert (reply.status, reply.body) == (400, [])
    assert reply.headers == [("Content-Type", TEXT), ("Content-Length", "0")]


def test_json_is_compact_and_leaves_slashes_and_letters_alone() -> None:
    reply = json_reply({"a": ["/", "é"]})
    assert reply.body == ['{"a":["/","é"]}'.encode()]
    assert reply.headers == [("Content-Type", JSON), ("Content-Length", "16")]


def test_send_gives_buffers_to_our_worker_and_bytes_to_others() -> None:
    reply = Reply(200, [("A", "b")], [b"x", memoryview(b"yy"), bytearray(b"z")])
    calls, body = started(reply, {})
    assert calls == [("200 OK", [("A", "b")])]
    assert body == [b"x", b"yy", b"z"]
    assert all(type(part) is bytes for part in body)
    part = memoryview(b"yy")
    _, body = started(Reply(200, [], [b"x", part]), {BODY_KEY: b""})
    assert body[1] is part
    assert body_size(Reply(200, [], [b"x", memoryview(b"yy")])) == 3
    assert body_size(Reply(200, [], (part for part in [b"x"]))) == 0


@pytest.mark.parametrize("environ", [{}, {BODY_KEY: b"", "wsgi.input": BytesIO()}])
def test_the_parts_of_a_stream_are_made_one_after_the_other(environ: dict[str, Any]) -> None:
    events: list[str] = []

    def parts() -> Generator[Buffer]:
        try:
            for number in range(3):
                events.append(f"made {number}")
                yield memoryview(b"part")
        finally:
            events.append("closed")

    sent: Any = send(Reply(200, [], parts()), environ, lambda *arguments: None)
    assert environ == {}
    for part in sent:
        events.append(f"sent {bytes(part).decode()}")
        if len(events) == 4:
            sent.close()
    assert events == ["made 0", "sent part", "made 1", "sent part", "closed"]


# --- request headers


@pytest.mark.parametrize(("name", "key"), [("admin-Key", "HTTP_ADMIN_KEY"), ("Content-Type", "CONTENT_TYPE")])
def test_header_of_finds_a_header_under_its_wsgi_key(name: str, key: str) -> None:
    assert header_of({key: "a"}, name) == "a"
    assert header_of({}, name) is None


def test_header_of_distinguishes_underscores_where_names_are_kept() -> None:
    kept = {"trident.headers": [("Admin-Key", "b"), ("Admin_Key", "a")], "HTTP_ADMIN_KEY": "b"}
    assert header_of(kept, "admin_key") == "a"
    assert header_of({"trident.headers": [("Admin-Key", "a")], "HTTP_ADMIN_KEY": "a"}, "admin_key") is None
    # Other servers do not keep the names.
    assert header_of({"HTTP_ADMIN_KEY": "a"}, "admin_key") == "a"


# --- request path


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


# --- request log


@pytest.mark.parametrize(
    ("method", "number"),
    [("GET", 0), ("HEAD", 1), ("POST", 2), ("PUT", 3), ("DELETE", 4), ("OPTIONS", 8), ("PATCH", 15), ("BREW", 16)],
)
def test_request_log_writes_tritons_number_of_the_method(
    caplog: pytest.LogCaptureFixture, method: str, number: int
) -> None:
    caplog.set_level(logging.DEBUG, "trident.http")
    log_request({"REQUEST_METHOD": method, "RAW_URI": "/v2/models/a%2Fb/ready?secret=1"})
    assert caplog.messages == [f"HTTP request: {number} /v2/models/a%2Fb/ready"]


# --- options


def test_the_header_pattern_forwards_nothing_by_default_and_ignores_case() -> None:
    assert HttpOptions().header_pattern is None
    pattern = HttpOptions(header_forward_pattern="x-(a|b)").header_pattern
    assert pattern is not None
    assert pattern.matches("My-X-A-Header")
    assert not pattern.matches("X-C")
    with pytest.raises(ConfigInvalid, match="--http-header-forward-pattern is not a regular expression: '\\('"):
        HttpOptions(header_forward_pattern="(")


# --- the header Server-Timing


def test_times_are_milliseconds_in_the_grammar_of_the_header() -> None:
    text = server_timing(InferenceTimes(120_000, 1_000, 2_345_678, 0, 8, CloseReason.DELAY))
    durations = "queue;dur=0.120, compute_input;dur=0.001, compute_infer;dur=2.346, compute_output;dur=0.000"
    assert text == f'{durations}, batch;desc="8", close;desc="delay"'
    metric = r'[a-z_]+;(dur=[0-9.]+|desc="[^"]*")'
    assert re.fullmatch(f"{metric}(, {metric})*", text)


# --- notes for the access log


def test_the_model_and_the_longest_times_of_all_responses_are_noted() -> None:
    environ: Environ = {}
    responses = [InferenceResponse("m", 3, []) for _ in range(2)]
    note_inference(environ, responses)
    assert environ == {}
    responses[0].times = InferenceTimes(1, 2, 3, 4, 5)
    responses[1].times = InferenceTimes(9, 2, 3, 4, 1)
    note_inference(environ, responses)
    assert environ == {INFERENCE_KEY: InferenceNote("m", 3, InferenceTimes(9, 2, 3, 4, 5))}
