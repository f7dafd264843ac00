from __future__ import annotations

import hpack
import pytest

from tests.unit.app.worker.http2.raw_client import REQUEST, RecordingApplication
from trident.app.worker.http2.frames import StreamFault
from trident.app.worker.http2.headers import RequestHeads, encode_fields


def test_a_block_is_known_until_the_table_changes():
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


def test_what_changes_is_not_among_what_is_remembered():
    application = RecordingApplication()
    heads = RequestHeads(application, 16384)
    for seconds in range(5):
        timeout = (b"grpc-timeout", b"%dS" % seconds)
        assert heads.read(encode_fields((*REQUEST, timeout)))[0] == (*REQUEST, timeout)
        assert heads.read(encode_fields((*REQUEST[:3], timeout, (b"a", b"b"))))[0] == (
            *REQUEST[:3],
            (b"a", b"b"),
            timeout,
        )
    assert application.heads_parsed == 2


def test_the_length_of_the_content():
    fields = (*REQUEST, (b"content-length", b"5"), (b"content-length", b"5"))
    assert RequestHeads(RecordingApplication(), 16384).read(encode_fields(fields)) == (fields, 5)


def test_blanks_around_a_value_are_dropped():
    application = RecordingApplication()
    heads = RequestHeads(application, 16384)
    sent = (*REQUEST, (b"grpc-timeout", b" 1S"), (b"a", b"\t b c "))
    for _ in range(2):
        assert heads.read(encode_fields(sent))[0] == (*REQUEST, (b"a", b"b c"), (b"grpc-timeout", b"1S"))
    with pytest.raises(StreamFault):
        heads.read(encode_fields((REQUEST[0], (b":path", b" /x"), *REQUEST[2:])))


def test_trailers_have_no_pseudo_headers():
    with pytest.raises(StreamFault):
        RequestHeads(RecordingApplication(), 16384).read_trailers(b"\x82")


def test_a_large_section_is_not_remembered():
    heads = RequestHeads(RecordingApplication(), 16384)
    block = encode_fields((*REQUEST, (b"a", b"x" * 3000)))
    heads.read(block)
    heads.read(block)
    assert not heads.known
    assert not heads._by_fields
