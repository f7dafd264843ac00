from __future__ import annotations

import hpack
import pytest

from tests.unit.app.worker.http2.raw_client import (
    REQUEST,
    Frame,
    RawClient,
    RecordingApplication,
    headers_frame,
    hold,
    kinds,
)
from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import Http2Code, Http2Limits, Pings, ProtocolError
from trident.core.grpc.transport import HeaderFields


def test_a_header_section_larger_than_the_clients_frames_is_continued():
    client = RawClient(RecordingApplication(hold))
    client.request(1)
    client.calls[0].stream.send(None, trailers=HeaderFields((b"grpc-message", b"x" * 40000)))
    found = client.taken()
    assert kinds(found) == [frames.HEADERS, frames.CONTINUATION, frames.CONTINUATION]
    assert [frame.flags for frame in found] == [frames.END_STREAM, 0, frames.END_HEADERS]
    assert dict(client.decoder.decode(b"".join(frame.content for frame in found), raw=True)) == {
        b"grpc-message": b"x" * 40000
    }


def test_paused_stream_receives_at_most_its_window():
    client = RawClient(RecordingApplication(hold), Http2Limits(window=65536))
    client.send(headers_frame(1))
    client.calls[0].stream.pause()
    assert client.send(frames.frame(frames.DATA, 0, 1, bytes(65536))) == []
    client.calls[0].stream.resume()
    assert client.taken() == [Frame(frames.WINDOW_UPDATE, 0, 1, (65536).to_bytes(4, "big"))]
    client.calls[0].stream.pause()
    client.send(frames.frame(frames.DATA, 0, 1, bytes(65536)))
    assert client.refused(frames.frame(frames.DATA, 0, 1, b"x"))[0] is Http2Code.FLOW_CONTROL_ERROR


def test_drain_continues_without_the_clients_ack():
    client = RawClient()
    client.protocol.drain()
    client.taken()
    assert client.tick(1) is True
    client.tick(2)
    assert kinds(client.taken()) == [frames.GOAWAY]


def test_silent_client_is_pinged():
    client = RawClient(RecordingApplication(hold), Http2Limits(keepalive_s=100, keepalive_timeout_s=20))
    assert client.tick(101) is True
    assert client.taken() == []  # nothing is open, so nothing is at stake
    client.request(1)
    client.tick(101)
    (ping,) = client.taken()
    assert ping.kind == frames.PING
    assert client.tick(19) is True
    client.send(frames.frame(frames.PING, frames.ACK, 0, ping.content))
    assert client.tick(2) is True
    client.tick(101)
    assert client.tick(21) is False


def test_changed_timeout_does_not_invalidate_the_cached_head():
    """Clients insert the timeout into the table, so that all other indexes move."""
    client = RawClient()
    encoder = hpack.Encoder()
    for id in range(1, 21, 2):
        fields = [*REQUEST, (b"te", b"trailers"), (b"grpc-timeout", b"%du" % (1000 + id))]
        client.send(headers_frame(id, encoder.encode(fields), 5))
        assert client.calls[-1].head == tuple(fields)
    assert client.application.heads_parsed == 1


def test_pings_are_rarer_while_no_stream_is_open():
    pings = Pings(Http2Limits(ping_interval_s=300, ping_interval_idle_s=7200, ping_strikes=2))
    for number in range(12):
        pings.count(300.0 * number, 0, idle=number > 9)
    with pytest.raises(ProtocolError, match="too_many_pings"):
        pings.count(300.0 * 12, 0, idle=True)
