from __future__ import annotations

from collections.abc import Generator
from io import BytesIO
from typing import Any

import pytest

from trident.core.http.reply import BODY_KEY, JSON, STATUS_LINES, TEXT, Reply, body_size, empty_reply, json_reply, send
from trident.core.inference.tensors import Buffer


def started(reply: Reply, environ: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    calls: list[Any] = []
    body = list(send(reply, environ, lambda *arguments: calls.append(arguments)))
    return calls, body


def test_status_lines_have_number_and_phrase() -> None:
    assert STATUS_LINES[200] == "200 OK"
    assert STATUS_LINES[405] == "405 Method Not Allowed"


def test_json_is_compact_and_leaves_slashes_and_letters_alone() -> None:
    reply = json_reply({"a": ["/", "é"]})
    assert reply.body == ['{"a":["/","é"]}'.encode()]
    assert reply.headers == [("Content-Type", JSON), ("Content-Length", "16")]


def test_an_empty_reply_has_a_type_and_a_length() -> None:
    reply = empty_reply(TEXT, 400)
    assert (reply.status, reply.body) == (400, [])
    assert reply.headers == [("Content-Type", TEXT), ("Content-Length", "0")]


def test_send_gives_bytes_to_a_plain_server() -> None:
    reply = Reply(200, [("A", "b")], [b"x", memoryview(b"yy"), bytearray(b"z")])
    calls, body = started(reply, {})
    assert calls == [("200 OK", [("A", "b")])]
    assert body == [b"x", b"yy", b"z"]
    assert all(type(part) is bytes for part in body)


def test_the_size_of_a_body_is_that_of_its_parts() -> None:
    assert body_size(Reply(200, [], [b"x", memoryview(b"yy")])) == 3
    assert body_size(Reply(200, [], (part for part in [b"x"]))) == 0


def test_send_gives_buffers_to_our_worker_without_copying() -> None:
    part = memoryview(b"yy")
    _, body = started(Reply(200, [], [b"x", part]), {BODY_KEY: b""})
    assert body[1] is part


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
