from __future__ import annotations

import gzip
import io
import tracemalloc
import zlib
from typing import Any

import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.body import choose_encoding, decompress, read_body, read_object


def environ(content: bytes, **more: Any) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(content), "CONTENT_LENGTH": str(len(content)), **more}


def chunked(content: bytes) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(content), "wsgi.input_terminated": True}


def test_a_body_is_read_up_to_the_limit_and_its_announced_length() -> None:
    assert read_body(environ(b"12345"), 5) == b"12345"
    assert read_body(chunked(b"12345"), 5) == b"12345"
    assert read_body(environ(b"12345", CONTENT_LENGTH="2"), 100) == b"12"
    assert read_body({"wsgi.input": io.BytesIO(b"next request")}, 100) == b""


@pytest.mark.parametrize("given", [environ(b"123456"), chunked(b"123456"), environ(b"", CONTENT_LENGTH="9" * 19)])
def test_a_larger_body_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="exceeds the maximum allowed input size of 5 bytes") as refused:
        read_body(given, 5)
    assert refused.value.message.endswith("Use --http-max-input-size to increase the limit.")


def test_empty_body_is_an_empty_object() -> None:
    assert read_object(environ(b""), 100) == {}
    assert read_object(environ(b'{"a":1}'), 100) == {"a": 1}


# --- compression


TEXT = b"a body, a body, a body" * 50
PACKED = {"gzip": gzip.compress(TEXT, mtime=0), "deflate": zlib.compress(TEXT)}


@pytest.mark.parametrize("container", ["gzip", "deflate"])
def test_exactly_the_limit_is_accepted(container: str) -> None:
    assert decompress(PACKED[container], container, len(TEXT)) == TEXT
    with pytest.raises(InvalidRequest) as refused:
        decompress(PACKED[container], container, len(TEXT) - 1)
    assert refused.value.message == (
        f"Decompressed data size exceeds the maximum allowed value of {len(TEXT) - 1} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.slow
def test_a_bomb_is_not_inflated_beyond_the_limit() -> None:
    bomb = zlib.compress(bytes(200_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="Decompressed data size exceeds"):
            decompress(bomb, "deflate", 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_corrupted_body_is_refused_and_an_empty_content_is_not() -> None:
    assert decompress(zlib.compress(b""), "deflate", 10) == b""
    broken = bytearray(PACKED["gzip"])
    broken[-6] ^= 1
    with pytest.raises(InvalidRequest, match="incorrect data check"):
        decompress(broken, "gzip", 10_000)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip;q=nan, deflate;q=inf", "identity"),
        ("gzip;level=1", "gzip"),
        (";,;q=,==" * 100_000, "identity"),
    ],
)
def test_choose_encoding_takes_the_best_accepted_encoding(accepted: str, encoding: str) -> None:
    assert choose_encoding(accepted) == encoding
