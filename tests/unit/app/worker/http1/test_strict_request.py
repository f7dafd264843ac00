from __future__ import annotations

import contextlib
import gc

import pytest
from gunicorn.config import Config

from app.worker.client_gone import ClientGone
from app.worker.http1.refusal import Refusal
from app.worker.http1.strict_request import MAX_CHUNKS, StrictRequest

PEER = ("1.2.3.4", 5)


class Source:
    """Returns its bytes, at most `step` at a time."""

    def __init__(self, rest: bytes, step: int) -> None:
        self._rest = rest
        self._step = step

    def recv(self, size: int) -> bytes:
        part = self._rest[: min(size, self._step)]
        self._rest = self._rest[len(part) :]
        return part


def strict(buffer: bytes, rest: bytes = b"", step: int = 1 << 16) -> StrictRequest:
    cfg = Config()
    cfg.set("http_parser", "python")
    cfg.set("header_map", "dangerous")  # as the worker sets it
    return StrictRequest(Source(buffer + rest, step), cfg, PEER)


def test_the_head_has_gunicorns_environ() -> None:
    request = strict(b"POST /a HTTP/1.0\r\nA_B: 1\r\nA-C: 2\r\nContent-Length: 4\r\n\r\nbody")
    head = request.head(None, PEER, ("h", 80))
    assert (head.length, head.keep_alive, head.minor_version, request.is_chunked) == (4, False, 0, False)
    assert "HTTP_A_B" not in head.environ
    assert head.environ["HTTP_A_C"] == "2"
    assert head.environ["trident.headers"] == [("a_b", "1"), ("a-c", "2"), ("content-length", "4")]
    assert head.environ["REMOTE_PORT"] == "5"
    assert request.rest() == b"body"


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_chunks_are_collected_and_the_rest_is_returned(step: int) -> None:
    head = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = strict(head, b"3\r\none\r\n4;x=y\r\nfour\r\n0\r\n\r\nnext", step=step)
    assert request.is_chunked
    assert request.chunked_body(100) == b"onefour"
    assert b"next".startswith(request.rest())


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (b"1\r\nx\r\n" * (MAX_CHUNKS + 1), "65536 non-empty chunks"),
        (b"65\r\n" + b"x" * 101, "100 bytes"),
        (b"zz\r\n", "chunk"),
    ],
)
def test_chunks_over_a_limit_are_refused(chunks: bytes, message: str) -> None:
    request = strict(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    with pytest.raises(Refusal, match=message):
        request.chunked_body(100 if message == "100 bytes" else 1 << 20)


def test_an_early_end_raises_client_gone() -> None:
    with pytest.raises(ClientGone):
        strict(b"GET / HT")
    request = strict(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
    with pytest.raises(ClientGone):
        request.chunked_body(100)


def test_a_malformed_head_is_refused() -> None:
    with pytest.raises(Refusal) as refusal:
        strict(b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n")
    assert refusal.value.status == 400


@pytest.mark.parametrize("body", [b"3\r\none\r\n0\r\n\r\n", b"3\r\non", b"zz\r\n"])
def test_a_chunked_request_leaves_nothing_to_the_garbage_collector(body: bytes) -> None:
    gc.collect()
    gc.disable()
    try:
        request = strict(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        request.head(None, PEER, ("h", 80))
        with contextlib.suppress(Refusal, ClientGone):
            request.chunked_body(100)
        del request
        assert gc.collect() == 0
    finally:
        gc.enable()
