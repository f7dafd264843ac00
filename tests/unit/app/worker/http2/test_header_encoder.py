from __future__ import annotations

import hpack
from hypothesis import given
from hypothesis import strategies as st

from trident.app.worker.http2.headers import block_of, encode_fields
from trident.core.grpc.transport import Fields, HeaderFields


def test_fields_of_the_static_table_are_indexed():
    assert encode_fields(((b":status", b"200"),)) == b"\x88"
    assert encode_fields(((b"content-type", b"a/b"),)) == b"\x0f\x10\x03a/b"


def test_a_section_is_encoded_once():
    headers = HeaderFields((b"grpc-status", b"0"))
    assert block_of(headers) is block_of(headers) is headers.block


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), max_size=6).map(tuple))
def test_another_decoder_reads_it_and_keeps_nothing(fields: Fields):
    decoder = hpack.Decoder()
    for _ in range(2):
        decoded = decoder.decode(encode_fields(fields), raw=True)
        assert tuple((bytes(name), bytes(value)) for name, value in decoded) == fields
    assert not decoder.header_table.dynamic_entries
