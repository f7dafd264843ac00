from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trident.app.worker.connection import CoarseClock
from trident.app.worker.http1.connection import Response, ResponseHead, ResponseHeads
from trident.app.worker.http1.request import RequestHead
from trident.core.inference.tensors import Buffer


class Sink:
    """Collects the sent bytes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closing = False
        self.turns = 0

    def send(self, parts: list[Buffer], size: int) -> None:
        whole = b"".join(parts)
        assert len(whole) == size
        self.sent.append(whole)

    def is_closing(self) -> bool:
        return self.closing

    def take_turn(self) -> None:
        self.turns += 1


def answer(
    status: str, headers: list[tuple[str, str]], parts: Any, *, method: str = "GET", minor_version: int = 1
) -> tuple[list[bytes], bool]:
    """The sent bytes, without the Date header, and whether the connection continues."""

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        start_response(status, headers)
        return parts

    sink = Sink()
    head = RequestHead({"REQUEST_METHOD": method, "HTTP_CONNECTION": "keep-alive"}, minor_version)
    clock = CoarseClock()
    response = Response(sink, head, ResponseHeads(), clock)
    response.run(application, {})
    assert clock.date_end in sink.sent[0]
    return [part.replace(clock.date_end, b"\r\n") for part in sink.sent], response.keep_alive


def test_a_list_is_sent_at_once_with_its_length() -> None:
    sent, keep_alive = answer("200 OK", [("A", "b")], [b"one", memoryview(b"two"), b""])
    assert sent == [b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 6\r\n\r\nonetwo"]
    assert keep_alive


def test_a_wrong_declared_length_is_refused() -> None:
    sent, _ = answer("200 OK", [("Content-Length", "3")], [b"one"])
    assert sent == [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"]
    with pytest.raises(ValueError, match="Content-Length of 4 and returned 3"):
        answer("200 OK", [("Content-Length", "4")], [b"one"])
    with pytest.raises(ValueError, match="more than the Content-Length"):
        answer("200 OK", [("Content-Length", "4")], iter([b"one", b"two"]))


def test_a_stream_that_fails_is_closed() -> None:
    closed = []

    def failing() -> Iterator[bytes]:
        try:
            yield b"one"
            raise KeyError("two")
        finally:
            closed.append(True)

    with pytest.raises(KeyError):
        answer("200 OK", [], failing())
    assert closed == [True]


def test_start_response_may_be_repeated_only_for_an_error() -> None:
    head = RequestHead({"REQUEST_METHOD": "GET"}, 1)
    response = Response(Sink(), head, ResponseHeads(), CoarseClock())
    response.start_response("200 OK", [])
    with pytest.raises(AssertionError, match="twice"):
        response.start_response("200 OK", [])
    error = ValueError("late")
    response.start_response("500 Internal Server Error", [], (ValueError, error, error.__traceback__))  # type: ignore[arg-type]
    assert response.status.startswith("500")
    response.write(b"begun")
    with pytest.raises(ValueError, match="late"):
        response.start_response("500 Internal Server Error", [], (ValueError, error, error.__traceback__))  # type: ignore[arg-type]


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
