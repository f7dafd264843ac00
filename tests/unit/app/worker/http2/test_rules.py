"""The rules of RFC 9113 and RFC 7541 for a server, as raw frames: what a conformance suite checks, and more."""

from __future__ import annotations

import pytest

from tests.unit.app.worker.http2.raw_client import (
    REQUEST,
    REQUEST_BLOCK,
    Frame,
    RawClient,
    RecordingApplication,
    headers_frame,
    hold,
    kinds,
)
from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Code,
    Http2Limits,
    frame,
)
from trident.app.worker.http2.headers import encode_fields
from trident.core.grpc.transport import Fields

WHOLE = headers_frame(1, flags=END_HEADERS | END_STREAM)
OPEN = headers_frame(1)
CANCELLED = OPEN + frames.rst_stream(1, Http2Code.CANCEL)


def setting(key: int, value: int) -> bytes:
    return frames.settings({key: value})


def holding() -> RawClient:
    return RawClient(RecordingApplication(hold))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        # Section 4.1 and 4.2: sizes of frames.
        pytest.param(frames.pack_head(((4 << 20) + 1) << 8 | DATA, 0, 1), "FRAME_SIZE", id="4.2 DATA"),
        pytest.param(frames.pack_head(((4 << 20) + 1) << 8 | 0xEE, 0, 0), "FRAME_SIZE", id="4.2 unknown type"),
        pytest.param(frames.pack_head(20000 << 8 | HEADERS, 4, 1), "ENHANCE_YOUR_CALM", id="4.2 HEADERS"),
        pytest.param(frames.pack_head(20000 << 8 | SETTINGS, 0, 0), "FRAME_SIZE", id="4.2 SETTINGS"),
        # Section 4.3: header blocks come in one piece.
        pytest.param(headers_frame(1, flags=0) + frame(PING, 0, 0, bytes(8)), "PROTOCOL", id="4.3 PING within a block"),
        pytest.param(headers_frame(1, flags=0) + headers_frame(3), "PROTOCOL", id="4.3 HEADERS within a block"),
        pytest.param(headers_frame(1, flags=0) + frame(DATA, 0, 1), "PROTOCOL", id="4.3 DATA within a block"),
        pytest.param(headers_frame(1, flags=0) + frame(0xEE, 0, 1), "PROTOCOL", id="4.3 unknown within a block"),
        pytest.param(headers_frame(1, flags=0) + frame(CONTINUATION, 4, 3), "PROTOCOL", id="4.3 another stream's part"),
        pytest.param(headers_frame(1, b"\xff\xff"), "COMPRESSION", id="4.3 a block that cannot be decoded"),
        # Section 5.1: states. Idle:
        pytest.param(frame(DATA, 0, 1, b"x"), "PROTOCOL", id="5.1 DATA on an idle stream"),
        pytest.param(frames.rst_stream(1, 8), "PROTOCOL", id="5.1 RST_STREAM on an idle stream"),
        pytest.param(frames.window_update(1, 1), "PROTOCOL", id="5.1 WINDOW_UPDATE on an idle stream"),
        pytest.param(frame(CONTINUATION, 4, 1, REQUEST_BLOCK), "PROTOCOL", id="5.1 CONTINUATION on an idle stream"),
        # Half-closed by the client, and then closed by the answer:
        pytest.param(WHOLE + frame(DATA, 0, 1, b"x"), "STREAM_CLOSED", id="5.1 DATA after the end"),
        pytest.param(WHOLE + headers_frame(1, flags=5), "STREAM_CLOSED", id="5.1 HEADERS after the end"),
        pytest.param(WHOLE + frame(CONTINUATION, 4, 1), "PROTOCOL", id="5.1 CONTINUATION after the end"),
        # Closed by the client's reset:
        pytest.param(CANCELLED + frame(DATA, 0, 1, b"x"), "STREAM_CLOSED", id="5.1 DATA after RST_STREAM"),
        pytest.param(CANCELLED + headers_frame(1), "STREAM_CLOSED", id="5.1 HEADERS after RST_STREAM"),
        # Section 5.1.1: numbers of streams.
        pytest.param(headers_frame(2), "PROTOCOL", id="5.1.1 an even stream"),
        pytest.param(headers_frame(0), "PROTOCOL", id="5.1.1 stream 0"),
        pytest.param(headers_frame(5) + headers_frame(3), "STREAM_CLOSED", id="5.1.1 a lower number than before"),
        # Section 6.1: DATA.
        pytest.param(frame(DATA, 0, 0, b"x"), "PROTOCOL", id="6.1 DATA on stream 0"),
        pytest.param(OPEN + frame(DATA, PADDED, 1, b"\5abcd"), "PROTOCOL", id="6.1 padding of a whole frame"),
        pytest.param(OPEN + frame(DATA, PADDED, 1, b""), "PROTOCOL", id="6.1 no length of the padding"),
        # Section 6.2: HEADERS.
        pytest.param(frame(HEADERS, PADDED | END_HEADERS, 1, b"\x3c" + REQUEST_BLOCK), "PROTOCOL", id="6.2 padding"),
        pytest.param(frame(HEADERS, PADDED | END_HEADERS, 1, b""), "FRAME_SIZE", id="6.2 no length of the padding"),
        pytest.param(frame(HEADERS, PRIORITIZED | END_HEADERS, 1, b"\0\0"), "FRAME_SIZE", id="6.2 half a priority"),
        pytest.param(
            frame(HEADERS, PRIORITIZED | END_HEADERS, 1, b"\0\0\0\1\0" + REQUEST_BLOCK), "PROTOCOL", id="5.3.1 HEADERS"
        ),
        # Section 6.3: PRIORITY.
        pytest.param(frame(PRIORITY, 0, 0, bytes(5)), "PROTOCOL", id="6.3 PRIORITY on stream 0"),
        pytest.param(frame(PRIORITY, 0, 1, bytes(4)), "FRAME_SIZE", id="6.3 size of PRIORITY"),
        pytest.param(frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), "PROTOCOL", id="5.3.1 PRIORITY"),
        # Section 6.4: RST_STREAM.
        pytest.param(frames.rst_stream(0, 8), "PROTOCOL", id="6.4 RST_STREAM on stream 0"),
        pytest.param(OPEN + frame(RST_STREAM, 0, 1, bytes(3)), "FRAME_SIZE", id="6.4 size of RST_STREAM"),
        # Section 6.5: SETTINGS.
        pytest.param(frame(SETTINGS, ACK, 0, bytes(6)), "FRAME_SIZE", id="6.5 ACK with content"),
        pytest.param(frame(SETTINGS, 0, 1, bytes(6)), "PROTOCOL", id="6.5 SETTINGS on a stream"),
        pytest.param(frame(SETTINGS, 0, 0, bytes(5)), "FRAME_SIZE", id="6.5 size of SETTINGS"),
        pytest.param(setting(frames.ENABLE_PUSH, 2), "PROTOCOL", id="6.5.2 ENABLE_PUSH"),
        pytest.param(setting(frames.INITIAL_WINDOW_SIZE, 2**31), "FLOW_CONTROL", id="6.5.2 INITIAL_WINDOW_SIZE"),
        pytest.param(setting(frames.MAX_FRAME_SIZE, 16383), "PROTOCOL", id="6.5.2 MAX_FRAME_SIZE, small"),
        pytest.param(setting(frames.MAX_FRAME_SIZE, 2**24), "PROTOCOL", id="6.5.2 MAX_FRAME_SIZE, large"),
        # Section 6.6: PUSH_PROMISE.
        pytest.param(frame(PUSH_PROMISE, 4, 1, bytes(4)), "PROTOCOL", id="6.6 PUSH_PROMISE"),
        pytest.param(frame(PUSH_PROMISE, 4, 1), "PROTOCOL", id="6.6 PUSH_PROMISE, empty"),
        # Section 6.7: PING.
        pytest.param(frame(PING, 0, 1, bytes(8)), "PROTOCOL", id="6.7 PING on a stream"),
        pytest.param(frame(PING, 0, 0, bytes(6)), "FRAME_SIZE", id="6.7 PING, short"),
        pytest.param(frame(PING, 0, 0, bytes(9)), "FRAME_SIZE", id="6.7 PING, long"),
        # Section 6.8: GOAWAY.
        pytest.param(frame(GOAWAY, 0, 1, bytes(8)), "PROTOCOL", id="6.8 GOAWAY on a stream"),
        # Section 6.9: WINDOW_UPDATE.
        pytest.param(frames.window_update(0, 0), "PROTOCOL", id="6.9 an increment of 0"),
        pytest.param(frame(WINDOW_UPDATE, 0, 0, bytes(3)), "FRAME_SIZE", id="6.9 WINDOW_UPDATE, short"),
        pytest.param(frame(WINDOW_UPDATE, 0, 0, bytes(5)), "FRAME_SIZE", id="6.9 WINDOW_UPDATE, long"),
        pytest.param(frames.window_update(0, 2**31 - 1), "FLOW_CONTROL", id="6.9.1 the connection's window"),
        # Section 6.10: CONTINUATION.
        pytest.param(frame(CONTINUATION, 4, 0), "PROTOCOL", id="6.10 CONTINUATION on stream 0"),
        pytest.param(OPEN + frame(CONTINUATION, 4, 1), "PROTOCOL", id="6.10 CONTINUATION after END_HEADERS"),
    ],
)  # fmt: skip
def test_protocol_violation_closes_the_connection(sent: bytes, code: str):
    name = code if code in Http2Code.__members__ else f"{code}_ERROR"
    assert holding().refused(sent)[0] is Http2Code[name]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(OPEN + frames.window_update(1, 0), "PROTOCOL_ERROR", id="6.9 an increment of 0"),
        pytest.param(OPEN + frames.window_update(1, 2**31 - 1), "FLOW_CONTROL_ERROR", id="6.9.1 a stream's window"),
        pytest.param(OPEN + headers_frame(1, b""), "PROTOCOL_ERROR", id="8.1 trailers without END_STREAM"),
        pytest.param(OPEN + headers_frame(1, b"\x82", 5), "PROTOCOL_ERROR", id="8.1 pseudo-header in trailers"),
    ],
)
def test_protocol_violation_resets_only_its_stream(sent: bytes, code: str):
    client = holding()
    (reset,) = client.send(sent)
    assert reset == Frame(RST_STREAM, 0, 1, Http2Code[code].to_bytes(4, "big"))
    assert client.calls[0].events == ["cancel"]
    client.request(3)
    assert client.calls[1].events == ["end"]


MALFORMED = [
    pytest.param(((*REQUEST, (b"X-Upper", b"1"))), id="8.2.1 an upper-case name"),
    pytest.param(((*REQUEST, (b"", b"1"))), id="8.2.1 no name"),
    pytest.param(((*REQUEST, (b"a b", b"1"))), id="8.2.1 a space in a name"),
    pytest.param(((*REQUEST, (b"a", b"1\r\nb: 2"))), id="8.2.1 a line break in a value"),
    pytest.param(((*REQUEST, (b"a", b"1\0"))), id="8.2.1 a NUL in a value"),
    pytest.param(((*REQUEST, (b"connection", b"keep-alive"))), id="8.2.2 connection"),
    pytest.param(((*REQUEST, (b"keep-alive", b"1"))), id="8.2.2 keep-alive"),
    pytest.param(((*REQUEST, (b"proxy-connection", b"1"))), id="8.2.2 proxy-connection"),
    pytest.param(((*REQUEST, (b"transfer-encoding", b"chunked"))), id="8.2.2 transfer-encoding"),
    pytest.param(((*REQUEST, (b"upgrade", b"h2c"))), id="8.2.2 upgrade"),
    pytest.param(((*REQUEST, (b"te", b"trailers, deflate"))), id="8.2.2 te"),
    pytest.param(((*REQUEST, (b":test", b"x"))), id="8.3 an unknown pseudo-header"),
    pytest.param(((*REQUEST, (b":status", b"200"))), id="8.3 a response's pseudo-header"),
    pytest.param(((b"a", b"1"), *REQUEST), id="8.3 a pseudo-header after a field"),
    pytest.param(((b"grpc-timeout", b"1S"), *REQUEST), id="8.3 a pseudo-header after a field that changes"),
    pytest.param(REQUEST[1:], id="8.3.1 no :method"),
    pytest.param((REQUEST[0], *REQUEST[2:]), id="8.3.1 no :scheme"),
    pytest.param((*REQUEST[:2], REQUEST[3]), id="8.3.1 no :path"),
    pytest.param((*REQUEST[:2], (b":path", b"")), id="8.3.1 an empty :path"),
    pytest.param((*REQUEST[:2], (b":path", b"/a\n")), id="8.3.1 a line break in :path"),
    *[pytest.param((*REQUEST, field), id=f"8.3.1 two {field[0].decode()}") for field in REQUEST],
    pytest.param(((*REQUEST, (b"host", b"other"))), id="8.3.1 host and :authority"),
    pytest.param(((b":method", b"CONNECT"), *REQUEST[1:]), id="8.5 CONNECT with :path"),
    pytest.param(((*REQUEST, (b"content-length", b"-1"))), id="8.1.1 a negative content-length"),
    pytest.param(((*REQUEST, (b"content-length", b"5"), (b"content-length", b"6"))), id="8.1.1 two lengths"),
]


@pytest.mark.parametrize("fields", MALFORMED)
def test_malformed_request_is_reset_before_the_application(fields: Fields):
    client = RawClient()
    for id in (1, 3):  # a second time, when it might be known
        (reset,) = client.send(headers_frame(id, encode_fields(fields), 5))
        assert reset == Frame(RST_STREAM, 0, id, Http2Code.PROTOCOL_ERROR.to_bytes(4, "big"))
    assert client.calls == []
    assert kinds(client.request(5)) == [HEADERS, DATA, HEADERS]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param((*REQUEST, (b"te", b"trailers")), id="8.2.2 te"),
        pytest.param((*REQUEST, (b"host", b"X")), id="8.3.1 host"),
        pytest.param((*REQUEST[:3], (b"host", b"x")), id="8.3.1 host instead of :authority"),
        pytest.param(((b":method", b"CONNECT"), (b":authority", b"x:1")), id="8.5 CONNECT"),
        pytest.param((*REQUEST, (b"a", b"")), id="8.2.1 an empty value"),
        pytest.param((*REQUEST, (b"a", b"\xff b\tc")), id="8.2.1 bytes"),
        pytest.param((*REQUEST, (b"a", b"1"), (b"a", b"1")), id="the same field twice"),
        pytest.param((*REQUEST, (b"content-length", b"0")), id="8.1.1 content-length"),
    ],
)
def test_allowed_headers_reach_the_application(fields: Fields):
    client = RawClient()
    client.send(headers_frame(1, encode_fields(fields), 5))
    assert client.calls[0].head == fields


@pytest.mark.parametrize(
    ("parts", "flag"),
    [
        pytest.param([b""], END_STREAM, id="nothing"),
        pytest.param([b"1234"], END_STREAM, id="too short"),
        pytest.param([b"12", b"34"], END_STREAM, id="too short, in two frames"),
        pytest.param([b"123456"], 0, id="too long"),
        pytest.param([b"123", b"456"], END_STREAM, id="too long, in two frames"),
    ],
)
def test_wrong_content_length_resets_the_stream(parts: list[bytes], flag: int):
    client = RawClient()
    client.send(headers_frame(1, encode_fields((*REQUEST, (b"content-length", b"5")))))
    found = client.send(*[frame(DATA, 0, 1, part) for part in parts[:-1]], frame(DATA, flag, 1, parts[-1]))
    assert [(one.kind, one.number) for one in found] == [(RST_STREAM, Http2Code.PROTOCOL_ERROR)]
    assert client.calls[0].events == ["cancel"]


def test_section_5_1_frames_that_may_come_for_a_closed_stream():
    client = RawClient()
    client.send(WHOLE)
    assert client.send(frames.window_update(1, 1), frame(PRIORITY, 0, 1, bytes(5)), frames.rst_stream(1, 8)) == []
    client.request(3)
    assert client.calls[1].events == ["end"]


def test_section_6_9_2_a_smaller_window_can_be_negative():
    client = RawClient(settings={frames.INITIAL_WINDOW_SIZE: 3})
    client.request(1)
    client.send(setting(frames.INITIAL_WINDOW_SIZE, 0))
    assert client.send(frames.window_update(1, 3)) == []
    assert [found.content for found in client.send(frames.window_update(1, 1))] == [b"l"]


def test_section_6_9_2_settings_must_not_make_a_window_too_large():
    client = holding()
    client.send(OPEN, frames.window_update(1, 2**31 - 1 - 65535))
    assert client.refused(setting(frames.INITIAL_WINDOW_SIZE, 65536))[0] is Http2Code.FLOW_CONTROL_ERROR


def test_section_6_9_frames_of_closed_streams_use_the_connections_window():
    client = RawClient(RecordingApplication(hold), Http2Limits(window=4 << 20))
    client.send(OPEN)
    client.calls[0].stream.reset()
    assert kinds(client.taken()) == [RST_STREAM]
    found = [one for _ in range(13) for one in client.send(frame(DATA, 0, 1, bytes(1 << 19)))]
    (granted,) = found
    assert (granted.kind, granted.stream) == (WINDOW_UPDATE, 0)


def test_section_8_1_trailers_end_a_request():
    client = RawClient()
    client.send(OPEN, frame(DATA, 0, 1, b"hello"), headers_frame(1, encode_fields(((b"checksum", b"1"),)), 5))
    assert client.calls[0].content == b"hello"
    assert client.calls[0].events == ["end"]
