from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.body import choose_encoding, compress, decompress
from trident.core.http.errors import UnsupportedEncoding
from trident.core.inference.tensors import Buffer

TEXT = b"a body, a body, a body" * 50
PACKED = {"gzip": gzip.compress(TEXT, mtime=0), "deflate": zlib.compress(TEXT)}


@pytest.mark.parametrize("encoding", ["gzip", "deflate", " GZIP "])
@pytest.mark.parametrize("container", ["gzip", "deflate"])
def test_decompress_finds_the_container_in_the_body(encoding: str, container: str) -> None:
    assert decompress(memoryview(PACKED[container]), encoding, 10_000) == TEXT


@pytest.mark.parametrize("encoding", ["identity", ""])
def test_identity_returns_the_body_itself(encoding: str) -> None:
    assert decompress(TEXT, encoding, 1) is TEXT


@pytest.mark.parametrize("encoding", ["br", "gzip, deflate", "x"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding, match=r"^Unsupported compression type$"):
        decompress(PACKED["gzip"], encoding, 10_000)


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


def test_an_empty_body_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^nothing to be decompressed$"):
        decompress(b"", "gzip", 10)
    assert decompress(zlib.compress(b""), "deflate", 10) == b""


@pytest.mark.parametrize(
    "body", [b"notgzip", PACKED["gzip"][:-1], PACKED["deflate"][:20], PACKED["gzip"] + b"x", PACKED["gzip"] * 2]
)
def test_broken_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to decompress the request body: "):
        decompress(body, "gzip", 10_000)


def test_a_corrupted_body_is_refused() -> None:
    broken = bytearray(PACKED["gzip"])
    broken[-6] ^= 1
    with pytest.raises(InvalidRequest, match="incorrect data check"):
        decompress(broken, "gzip", 10_000)


def test_parts_become_one_stream() -> None:
    parts: list[Buffer] = [b"one,", memoryview(b"two,"), bytearray(b"three")]
    assert gzip.decompress(compress(parts, "gzip")) == b"one,two,three"
    assert zlib.decompress(compress(parts, "deflate")) == b"one,two,three"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", "identity"),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.5, deflate;q=0.9", "deflate"),
        ("identity, gzip", "identity"),
        ("identity;q=0.2,gzip", "gzip"),
        ("br", "identity"),
        ("br;q=1, gzip ; q = 0.1", "gzip"),
        ("*", "identity"),
        ("GZIP", "gzip"),
        ("gzip;q=0", "identity"),
        ("gzip;q=x, deflate;q=0.1", "deflate"),
        ("gzip;q=nan, deflate;q=inf", "identity"),
        ("gzip;q=2", "identity"),
        ("gzip;q=.", "identity"),
        ("gzip;level=1", "identity"),
        (";,;q=,==" * 100_000, "identity"),
    ],
)
def test_choose_encoding_takes_the_best_accepted_encoding(accepted: str, encoding: str) -> None:
    assert choose_encoding(accepted) == encoding
