"""Known attacks on servers of HTTP/2. Each ends in a GOAWAY or a refusal, with bounded memory.

docs/spec/attacks.md has the table of them, with the names of these tests.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat

import hpack
import pytest

from tests.unit.app.worker.http2.raw_client import (
    REQUEST,
    REQUEST_BLOCK,
    Call,
    RawClient,
    RecordingApplication,
    headers_frame,
    hold,
)
from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    SETTINGS,
    Http2Code,
    Http2Limits,
    ProtocolError,
    frame,
)
from trident.app.worker.http2.headers import encode_fields

CALM = Http2Code.ENHANCE_YOUR_CALM
BURST = Http2Limits().burst
STREAMS = range(1, 20 * BURST, 2)


class Unstoppable(Call):
    """A call that runs on when its client has gone, as one in a model does."""

    def cancel(self) -> None:
        self.events.append("cancel")


class UnstoppableApplication(RecordingApplication):
    def open(self, stream, head):  # type: ignore[no-untyped-def]
        call = Unstoppable(stream, head, hold)
        self.calls.append(call)
        return call


@contextmanager
def bounded(size: int) -> Iterator[None]:
    """Assert that the block allocates at most `size` bytes, at its peak as well."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < size


def flood(client: RawClient, parts: bytes | Iterable[bytes]) -> tuple[int, ProtocolError]:
    """Send a part again and again, or each of many, until the connection ends; how many it took, and why it ended.

    The socket takes what comes back.
    """
    for taken, part in enumerate(repeat(parts, 4 * BURST) if isinstance(parts, bytes) else parts):
        try:
            client.protocol.receive(part)
        except ProtocolError as fault:
            assert client.protocol.table.is_closed
            assert not client.protocol.streams
            return taken, fault
        client.protocol.outbox.take()
    raise AssertionError("the connection took everything")


def test_rapid_reset_cve_2023_44487():
    """Streams that are begun and reset at once: work for the server, and always below the limit of streams."""
    client = RawClient(UnstoppableApplication(), Http2Limits(streams=100))
    _, fault = flood(client, (headers_frame(id, flags=5) + frames.rst_stream(id, Http2Code.CANCEL) for id in STREAMS))
    assert fault.code is CALM
    assert len(client.calls) == 100  # which still run
    assert client.protocol.table.places_taken == 100
    for call in client.calls:
        call.stream.release()
    assert client.protocol.table.places_taken == 0


def test_rapid_reset_within_the_limits_is_served():
    """A client that cancels no more calls than it completes is not an attacker."""
    client = RawClient()
    for id in range(1, 12 * BURST, 4):
        client.request(id)
        client.send(headers_frame(id + 2), frames.rst_stream(id + 2, Http2Code.CANCEL))
    assert len(client.calls) == 6 * BURST


@pytest.mark.parametrize(
    "breach",
    [
        pytest.param(lambda id: frames.window_update(id, 0), id="an increment of 0"),
        pytest.param(lambda id: frames.window_update(id, 2**31 - 1), id="a window too large"),
        pytest.param(lambda id: headers_frame(id, b""), id="trailers without an end"),
        pytest.param(lambda id: frame(DATA, 0, id, bytes(9)), id="more than content-length"),
    ],
)
def test_made_you_reset_cve_2025_8671(breach):
    """The client makes the server reset its streams, so that it never sends a RST_STREAM itself."""
    block = encode_fields((*REQUEST, (b"content-length", b"5")))
    client = RawClient(UnstoppableApplication(), Http2Limits(streams=100))

    def parts() -> Iterator[bytes]:
        for id in STREAMS:
            yield headers_frame(id, block)
            if id in client.protocol.streams:
                yield breach(id)

    _, fault = flood(client, parts())
    assert fault.code is CALM
    assert len(client.calls) == 100


def test_continuation_flood_cve_2024_27316():
    """A header section without an end."""
    client = RawClient()
    client.send(headers_frame(1, REQUEST_BLOCK, 0))
    with bounded(1 << 20):
        sent, fault = flood(client, frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 100))
    assert fault.code is CALM
    assert sent < 10


def test_continuation_flood_of_empty_frames():
    client = RawClient()
    client.send(headers_frame(1, REQUEST_BLOCK, 0))
    sent, fault = flood(client, frame(CONTINUATION, 0, 1))
    assert fault.code is CALM
    assert sent < 10


@pytest.mark.parametrize(
    ("parts", "most"),
    [
        pytest.param([frame(SETTINGS, 0, 0)], BURST, id="SETTINGS, CVE-2019-9515"),
        pytest.param([frames.settings({frames.INITIAL_WINDOW_SIZE: 1})], BURST, id="SETTINGS of windows"),
        pytest.param([frame(SETTINGS, frames.ACK, 0)], BURST, id="acknowledgements of SETTINGS"),
        pytest.param([frame(PING, 0, 0, bytes(8))], BURST, id="PING, CVE-2019-9512"),
        pytest.param([frame(PRIORITY, 0, id, bytes(5)) for id in (1, 3, 5)], BURST // 3, id="PRIORITY, CVE-2019-9513"),
        pytest.param([frame(DATA, 0, 1)], BURST, id="empty DATA, CVE-2019-9518"),
        pytest.param([frame(DATA, PADDED, 1, b"\1\0")], BURST, id="padding alone"),
        pytest.param([frames.window_update(0, 1)] * 20, BURST // 2, id="WINDOW_UPDATE of the connection"),
        pytest.param([frames.window_update(1, 1)] * 20, BURST // 2, id="WINDOW_UPDATE of a stream"),
        pytest.param([frame(frames.GOAWAY, 0, 0, bytes(8))], BURST, id="GOAWAY"),
        pytest.param([frame(0xEE, 0, 0)], BURST, id="unknown frames"),
    ],
)
def test_useless_frame_floods(parts: list[bytes], most: int):
    client = RawClient(limits=Http2Limits(ping_strikes=0))
    client.send(headers_frame(1))
    with bounded(1 << 20):
        sent, fault = flood(client, b"".join(parts))
    assert fault.code is CALM
    assert sent <= most


def test_malformed_requests_flood():
    sent, fault = flood(RawClient(), (headers_frame(id, b"\x82", 5) for id in STREAMS))
    assert fault.code is CALM
    assert sent <= BURST


def test_ping_strikes():
    """gRPC's own limit comes sooner: pings that bring nothing but work."""
    sent, fault = flood(RawClient(), frame(PING, 0, 0, bytes(8)))
    assert (fault.code, str(fault)) == (CALM, "too_many_pings")
    assert sent == 3


def test_window_update_flood_does_not_scan_all_streams():
    """With the window of the connection at 1 a frame moves one byte of one stream, however many wait."""
    client = RawClient(RecordingApplication(lambda call: call.stream.send(None, (bytes(1000),), 1000)))
    client.protocol.outbox.window = 0
    for id in range(1, 1000, 2):
        client.request(id)
    found = client.send(*[frames.window_update(0, 1)] * 100)
    assert [one.stream for one in found] == list(range(1, 200, 2))


def test_hpack_bomb():
    """A small block that means much: one large entry of the table, again and again."""
    client = RawClient()
    entry = b"\x40\x01a\x7f\xd1\x1e" + b"x" * 4048
    with bounded(1 << 20):
        (reset,) = client.send(headers_frame(1, entry + b"\xbe" * 400, 5))
        assert reset.number == CALM
        code, _ = client.refused(headers_frame(3, b"\xbe" * 16000, 5))
    assert code is CALM
    assert client.calls == []


def test_hpack_table_is_bounded():
    client = RawClient()
    with bounded(1 << 20):
        for id in range(1, 2 * BURST, 2):
            client.send(headers_frame(id, REQUEST_BLOCK + b"\x40\x03%03x\x7f\x81\x1f" % id + b"x" * 4096, 5))
            assert client.calls.pop().events == ["end"]


def test_hpack_integer_bomb():
    """An integer that never ends would be a number of any size."""
    code, text = RawClient().refused(headers_frame(1, b"\xff" + b"\xff" * 16000, 5))
    assert (code, text) == (Http2Code.COMPRESSION_ERROR, "an integer is too large")


def test_huffman_flood():
    """Codes are slow to decode: the decoded size is bounded, and so is how often the limit may be exceeded."""
    text = hpack.Encoder().huffman_coder.encode(b"0" * 25000)
    block = b"\x00\x01a\xff" + _integer(len(text) - 127) + text
    assert len(block) <= Http2Limits().header_list
    client = RawClient(limits=Http2Limits(burst=20, rate=0))
    with bounded(1 << 20):
        sent, fault = flood(client, (headers_frame(id, block, 5) for id in STREAMS))
    assert (sent, fault.code) == (20, CALM)
    assert client.calls == []


def _integer(number: int) -> bytes:
    encoded = b""
    while number > 127:
        encoded += bytes((number & 127 | 128,))
        number >>= 7
    return encoded + bytes((number,))


@pytest.mark.slow
def test_known_heads_are_bounded():
    """Header sections that are all different must not be remembered for ever, nor their texts."""
    client = RawClient()
    encoder = hpack.Encoder()
    for id in range(1, 401, 2):
        client.request(id)
    with bounded(4 << 20):
        for id in range(401, 4001, 2):
            fields = [*REQUEST, (b"x-%d" % id, b"%d" % id * 20)]
            block = encode_fields(tuple(fields)) if id % 4 == 1 else encoder.encode(fields)
            client.protocol.receive(headers_frame(id, block, 5))
            client.protocol.outbox.take()
            client.calls.clear()


def test_header_lists_over_the_limit():
    client = RawClient()
    fields = (*REQUEST, *[(b"a%d" % number, b"x" * 100) for number in range(125)])
    (reset,) = client.send(headers_frame(1, encode_fields(fields), 5))
    assert (reset.kind, reset.number) == (frames.RST_STREAM, CALM)
    client.request(3)
    assert len(client.calls) == 1
    assert client.refused(headers_frame(5, encode_fields(fields + fields), 5))[0] is CALM


def test_table_size_changes():
    client = RawClient()
    assert client.refused(headers_frame(1, b"\x20\x3f\xe1\x1f" * 100, 5))[0] is Http2Code.COMPRESSION_ERROR
    client = RawClient()
    for id in range(1, 2 * BURST, 2):  # up and down with each request, which makes nothing known
        client.send(headers_frame(id, b"\x20\x3f\xe1\x1f" + REQUEST_BLOCK, 5))
    assert len(client.calls) == BURST


def test_zero_windows_cve_2019_9517():
    """A client that requests much and reads nothing. Waiting data is bounded in size and time."""
    limits = Http2Limits(unsent=1 << 20, stall_s=60)
    answer = bytes(100_000)
    client = RawClient(
        RecordingApplication(lambda call: call.stream.send(None, (answer,), len(answer))),
        limits,
        settings={frames.INITIAL_WINDOW_SIZE: 0},
    )
    for id in range(1, 101, 2):
        client.send(headers_frame(id, flags=5))
    assert len(client.calls) == 11
    assert client.protocol.outbox.unsent == 1_100_000
    client.tick(61)
    assert not client.protocol.streams
    assert client.protocol.outbox.unsent == 0


def test_zero_windows_of_started_calls():
    """The limit of waiting data also applies to calls that began before it was reached."""
    limits = Http2Limits(unsent=1 << 20)
    client = RawClient(RecordingApplication(hold), limits, settings={frames.INITIAL_WINDOW_SIZE: 0})
    for id in range(1, 201, 2):
        client.send(headers_frame(id, flags=5))
    answer = bytes(100_000)
    for call in client.calls:
        call.stream.send(None, (answer,), len(answer))
    assert len(client.calls) == 100
    assert client.protocol.outbox.unsent < 5 << 20
    assert {one.number for one in client.taken() if one.kind == frames.RST_STREAM} == {CALM}


def test_client_that_never_reads():
    """Open windows, and a client that does not read: DATA stays in the streams, where it counts."""
    limits = Http2Limits(unsent=1 << 20, high_water=1 << 20)
    client = RawClient(limits=limits, settings={frames.INITIAL_WINDOW_SIZE: 2**31 - 1})
    client.send(frames.window_update(0, 2**31 - 1 - 65535))
    for id in range(1, 401, 2):
        client.protocol.receive(headers_frame(id) + frame(DATA, END_STREAM, id, bytes(60_000)))
    assert client.protocol.outbox.size < 2 << 20
    assert client.protocol.outbox.unsent < 2 << 20
    assert len(client.calls) < 60
    client.taken()
    client.request(1001)
    assert client.calls[-1].content == b"hello"


def test_half_open_handshakes():
    """Connections that never send a request."""
    limits = Http2Limits(handshake_s=20)
    for sent in (b"", frames.PREFACE[:10], frames.PREFACE, frames.PREFACE + frames.settings({1: 1})[:-1]):
        client = RawClient(limits=limits, greet=False)
        client.send(sent)
        assert client.tick(19) is True
        client.send(b"")
        assert client.tick(2) is False


def test_unfinished_header_section():
    client = RawClient(limits=Http2Limits(stall_s=60))
    client.send(headers_frame(1, REQUEST_BLOCK, 0))
    assert client.tick(59) is True
    assert client.tick(2) is False


def test_paused_streams_do_not_hold_more_than_the_connection_may():
    """Streams that wait for their model have their windows each; together they have a limit as well."""
    limits = Http2Limits(window=65536, held=1 << 20)
    client = RawClient(RecordingApplication(hold, began=lambda call: call.stream.pause()), limits)
    _, fault = flood(client, (headers_frame(id) + frame(DATA, 0, id, bytes(65536)) for id in STREAMS))
    assert fault.code is Http2Code.FLOW_CONTROL_ERROR
    assert sum(len(call.content) for call in client.calls) < 2 << 20


def test_data_beyond_the_window():
    client = RawClient(limits=Http2Limits(window=65536))
    client.send(headers_frame(1))
    assert client.refused(frame(DATA, 0, 1, bytes(65537)))[0] is Http2Code.FLOW_CONTROL_ERROR


def test_streams_over_the_limit():
    client = RawClient(RecordingApplication(hold), Http2Limits(streams=10))
    for id in range(1, 20, 2):
        assert client.send(headers_frame(id)) == []
    (refused,) = client.send(headers_frame(21))
    assert refused.number == Http2Code.REFUSED_STREAM
    _, fault = flood(client, (headers_frame(id) for id in range(23, 20 * BURST, 2)))
    assert fault.code is CALM
    assert len(client.calls) == 10


def test_data_on_streams_that_were_reset():
    client = RawClient(RecordingApplication(hold))
    client.send(headers_frame(1))
    client.calls[0].stream.reset()
    sent, fault = flood(client, frame(DATA, 0, 1, b"x") * 20)
    assert fault.code is CALM
    assert 20 * sent <= 10 * BURST
    assert HEADERS not in [one.kind for one in client.taken()]
