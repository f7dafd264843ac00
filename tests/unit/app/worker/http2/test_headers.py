from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.app.worker.http2.raw_client import REQUEST, RecordingApplication
from trident.app.worker.http2.frames import Http2Code, ProtocolError, StreamError
from trident.app.worker.http2.headers import HeaderDecoder, RequestHeads

TEXTS = st.binary(max_size=40)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"\x80", "index 0"),
        (b"\xbe", "refers to an entry"),
        (b"\x7e\x01a", "refers to an entry"),
        (b"\xff", "cut off"),
        (b"\x40", "cut off"),
        (b"\x40\x05abc", "ends within a string"),
        (b"\xff\x80\x80\x80\x80\x80\x01", "an integer is too large"),
        (b"\x00\x81\xff\x01b", "Huffman"),
        (b"\x00\x84\xff\xff\xff\xff\x01b", "Huffman"),
        (b"\x82\x20", "after a field"),
        (b"\x3f\xe2\x1f", "not those that SETTINGS allow"),
        (b"\x20\x20\x20", "not those that SETTINGS allow"),
    ],
)
def test_undecodable_header_block_closes_the_connection(block: bytes, text: str):
    with pytest.raises(ProtocolError, match=text) as caught:
        HeaderDecoder(16384).decode(block)
    assert caught.value.code is Http2Code.COMPRESSION_ERROR


def test_oversized_fields_still_update_the_dynamic_table():
    decoder = HeaderDecoder(100)
    with pytest.raises(StreamError) as caught:
        decoder.decode(b"\x40\x01a\x32" + b"x" * 50 + b"\x40\x01b\x01y" + b"\x40\x01c\x01z")
    assert caught.value.code is Http2Code.ENHANCE_YOUR_CALM
    assert decoder.decode(b"\xbe\xbf") == ((b"c", b"z"), (b"b", b"y"))


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(TEXTS, TEXTS, st.booleans()), max_size=12),
            st.booleans(),
            st.none() | st.integers(0, 4096),
        ),
        max_size=12,
    )
)
def test_headers_of_another_encoder_are_decoded(
    sections: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
):
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1 << 20)
    for fields, huffman, size in sections:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=huffman)
        assert decoder.decode(block) == tuple((name, value) for name, value, _ in fields)


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_decoder_agrees_with_hpack_on_arbitrary_bytes(blocks: list[bytes]):
    theirs, ours = hpack.Decoder(max_header_list_size=1 << 20), HeaderDecoder(1 << 20)
    for block in blocks:
        try:
            fields = ours.decode(block)
        except ProtocolError:
            return
        assert fields == tuple((bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True))


def test_header_block_is_cached_until_the_table_changes():
    application = RecordingApplication()
    heads = RequestHeads(application, 16384)
    encoder = hpack.Encoder()
    first = encoder.encode(REQUEST)
    assert heads.read(first) == (REQUEST, None)
    assert not heads.known  # the same bytes would insert the fields again
    again = encoder.encode(REQUEST)
    assert heads.read(again) == (REQUEST, None)
    assert heads.known[again] == (REQUEST, None)
    heads.read_trailers(encoder.encode([(b"x", b"1")]))
    assert not heads.known
    assert application.heads_parsed == 1
