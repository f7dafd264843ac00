from __future__ import annotations

import pytest

from trident.app.worker.http1.chunked_body import MAX_CHUNKS, ChunkedBody
from trident.app.worker.http1.request_head import Refusal

CHUNKS = b'3\r\none\r\n04 ;x=y; z="a;\\"b"\r\nfour\r\n0;last\r\nX-Sum: 1\r\n\r\n'


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_chunks_are_collected_and_the_rest_is_returned(step: int) -> None:
    body = ChunkedBody(100)
    parts = [(CHUNKS + b"next")[at : at + step] for at in range(0, len(CHUNKS + b"next"), step)]
    fed = next(number for number, part in enumerate(parts, 1) if body.feed(part))
    assert body.content == b"onefour"
    assert body.rest + b"".join(parts[fed:]) == b"next"


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
    with pytest.raises(Refusal, match=message):
        body.feed(chunks)
    if len(chunks) < 1000:  # as soon as the last byte of a refused line is there
        body = ChunkedBody(100)
        with pytest.raises(Refusal, match=message):
            [body.feed(bytes([byte])) for byte in chunks]
