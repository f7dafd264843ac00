"""Whatever a client, the application, the socket and the clock do, in any order: no exception but ProtocolError, no
window exceeded, nothing kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import hpack
import pytest

from tests.fuzzing import examples
from tests.unit.app.worker.http2.raw_client import HEADERS as ANSWER
from tests.unit.app.worker.http2.raw_client import (
    REQUEST,
    TRAILERS,
    Call,
    RawClient,
    RecordingApplication,
    echo,
    hold,
    split,
)
from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    Http2Code,
    Http2Limits,
    ProtocolError,
    frame,
)
from trident.app.worker.http2.headers import encode_fields
from trident.app.worker.http2.protocol import Http2Protocol

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.bin"))
LIMITS = Http2Limits(
    streams=12, window=65536, held=100_000, high_water=20_000, unsent=50_000, burst=60, rate=5, keepalive_s=50
)
LARGEST_PART = 70_000
SECTIONS = (
    (*REQUEST, (b"grpc-timeout", b"1S")),
    (*REQUEST, (b"content-length", b"5")),
    (*REQUEST, (b"a", b"x" * 300)),
    (*REQUEST, (b"Bad", b"")),
    ((b"trailer", b"1"),),
    (),
)
SIZES = (0, 1, 2, 100, 16384, 16385, 65535, 2**31 - 1, 2**31, 2**32 - 1)


class Ends(Call):
    """A call that a cancelled client does not stop."""

    def cancel(self) -> None:
        self.events.append("cancel")


class Application(RecordingApplication):
    def open(self, stream, head):  # type: ignore[no-untyped-def]
        call = Ends(stream, head, hold)
        self.calls.append(call)
        return call


def receive(protocol: Http2Protocol, content: bytes) -> None:
    """As a connection does: into the memory of a call, if there is some."""
    room = protocol.room()
    if room is not None:
        size = min(len(room), len(content))
        room[:size] = content[:size]
        protocol.filled(size)
        content = content[size:]
    protocol.receive(content)


class Walk:
    """A connection whose client keeps account of what the server may send.

    A rude client breaks rules, so that its connection ends soon. The client may send on the streams `sending`. The
    server may not send on those that have `ended`; `window` and `windows` are what it may send on the others.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.rude = random.random() < 0.3
        self.client = RawClient(Application(), LIMITS)
        self.protocol = self.client.protocol
        self.encoder = hpack.Encoder()
        self.next = 1
        self.sending: list[int] = []
        self.ended: set[int] = set()
        self.window = self.initial = frames.DEFAULT_WINDOW
        self.windows: dict[int, int] = {}
        self.frame = frames.DEFAULT_FRAME
        self.seen = 0
        self.sent = 0
        self.released = 0

    def run(self, steps: int) -> None:
        acts: list[tuple[Callable[[], object], float]] = [
            (self.begin, 6), (self.go_on, 8), (self.answer, 8), (self.flush, 6), (self.widen, 5), (self.cancel, 1),
            (self.free, 5), (self.turn, 2), (self.set, 1), (self.wait, 1), (self.send_anything, 3 * self.rude),
            (self.protocol.drain, 0.02),
        ]  # fmt: skip
        acts_, weights = zip(*acts, strict=True)
        for _ in range(steps):
            self.random.choices(acts_, weights)[0]()
            self.check_sent()
            self.check_kept()
            if self.protocol.table.is_closed:
                break
        self.end()

    # The client

    def send(self, content: bytes) -> bool:
        """Send `content` in random pieces; True while the connection is open."""
        size = len(content)
        cuts = sorted(self.random.randrange(size + 1) for _ in range(self.random.choice((0, 0, 0, 1, 3))))
        for start, end in zip([0, *cuts], [*cuts, size], strict=True):
            try:
                receive(self.protocol, content[start:end])
            except ProtocolError:
                assert self.rude
                assert self.protocol.table.is_closed
        return not self.protocol.table.is_closed

    def stream(self) -> int:
        """Choose a stream on which the client may still send; if it is rude, one of the latest. 0 for none."""
        if self.rude and self.random.random() < 0.1:
            return max(self.next - 2 * self.random.randrange(6), 1)
        return self.random.choice(self.sending) if self.sending else 0

    def begin(self) -> None:
        section = REQUEST if self.random.random() < 0.8 else self.random.choice(SECTIONS)
        huffman = self.random.random() < 0.5
        block = self.encoder.encode(section, huffman=huffman) if self.random.random() < 0.5 else encode_fields(section)
        ends = END_STREAM if self.random.random() < 0.3 else 0
        self.windows[self.next] = self.initial
        if not ends:
            self.sending.append(self.next)
        self.next += 2
        if self.random.random() < 0.1:
            cut = self.random.randrange(len(block) + 1)
            self.send(
                frame(HEADERS, ends, self.next - 2, block[:cut])
                + frame(frames.CONTINUATION, END_HEADERS, self.next - 2, block[cut:])
            )
        else:
            self.send(frame(HEADERS, END_HEADERS | ends, self.next - 2, block))

    def go_on(self) -> None:
        stream = self.stream()
        size = self.random.choice((0, 5, 60, 1000, 20_000, LARGEST_PART))
        if not stream or (not self.rude and not self.has_credit(stream, size)):
            return
        ends = self.random.random() < 0.2
        if ends and stream in self.sending:
            self.sending.remove(stream)
        padding = self.random.choice((None, None, 0, 10))
        if padding is None or size == LARGEST_PART:
            self.send(frame(DATA, END_STREAM if ends else 0, stream, bytes(size)))
        else:
            content = bytes((padding,)) + bytes(size + padding)
            self.send(frame(DATA, frames.PADDED | (END_STREAM if ends else 0), stream, content))

    def has_credit(self, stream: int, size: int) -> bool:
        """A polite client's account, for which that of the server stands here."""
        found = self.protocol.streams.get(stream)
        most = min(self.protocol.table._credit, found.credit if found is not None else self.protocol.table._credit)
        return size + 11 <= most

    def cancel(self) -> None:
        stream = self.stream()
        if stream and stream < self.next:
            self.ended.add(stream)
            self.sending = [other for other in self.sending if other != stream]
            self.send(frames.rst_stream(stream, Http2Code.CANCEL))

    def widen(self) -> None:
        begun = [0, 0, *range(max(self.next - 40, 1), self.next, 2)]
        stream = self.random.choice(begun)
        size = self.random.choice(SIZES) if self.rude else self.random.randrange(1, LARGEST_PART)
        if self.send(frames.window_update(stream, size)):
            size &= frames.LARGEST_WINDOW
            if stream:
                self.windows[stream] += size
            else:
                self.window += size

    def set(self) -> None:
        window = self.random.choice((None, self.random.choice(SIZES) if self.rude else self.random.randrange(100_000)))
        size = self.random.choice((None, 16384, 20_000, 2**24 - 1))
        values = {frames.INITIAL_WINDOW_SIZE: window, frames.MAX_FRAME_SIZE: size}
        if self.send(frames.settings({key: value for key, value in values.items() if value is not None})):
            if window is not None:
                self.windows = {stream: left + window - self.initial for stream, left in self.windows.items()}
                self.initial = window
            if size is not None:
                self.frame = size

    def send_anything(self) -> None:
        random = self.random
        kind = random.randrange(12)
        if kind not in (frames.SETTINGS, frames.WINDOW_UPDATE):  # of which account is kept
            content = random.randbytes(random.choice((0, 4, 5, 8, random.randrange(40))))
            stream = random.choice((0, 1, self.next, self.stream(), 2**32 - 1))
            self.send(frames.pack_head(len(content) << 8 | kind, random.randrange(256), stream) + content)

    # The application

    def call(self) -> Call | None:
        return self.random.choice(self.client.calls[-12:]) if self.client.calls else None

    def answer(self) -> None:
        call = self.call()
        if call is not None:
            part = bytes(self.random.choice((0, 1, 100, 5000, LARGEST_PART)))
            first, last = self.random.random() < 0.5, self.random.random() < 0.5
            call.stream.send(ANSWER if first else None, (part, b"!"), len(part) + 1, TRAILERS if last else None)

    def turn(self) -> None:
        call = self.call()
        if call is not None:
            call.memory = self.random.choice((None, bytearray(1 << 20)))
            self.random.choice((call.stream.pause, call.stream.resume, call.stream.resume, call.stream.reset))()

    def free(self) -> None:
        """Calls that have ended let go of their streams, sooner or later."""
        if self.released < len(self.client.calls) and self.random.random() < 0.8:
            call = self.client.calls[self.released]
            call.stream.send(None, (), 0, TRAILERS)
            call.stream.release()
            self.released += 1

    # The socket and the clock

    def wait(self) -> None:
        self.client.tick(self.random.choice((0.0, 0.5, 5.0, 30.0)))

    def flush(self) -> None:
        parts, size = self.protocol.outbox.take()
        assert sum(map(len, parts)) == size
        self.seen = 0
        self.protocol.outbox.pump()

    # What must be true

    def check_sent(self) -> None:
        parts = self.protocol.outbox.parts[self.seen :]
        self.seen += len(parts)
        for one in split(b"".join(parts)):
            self.sent += 1
            assert len(one.content) <= self.frame
            assert one.stream not in self.ended or (one.kind, one.number) == (RST_STREAM, Http2Code.NO_ERROR)
            if one.kind == DATA and one.content:
                self.window -= len(one.content)
                self.windows[one.stream] -= len(one.content)
                assert self.window >= 0
                assert self.windows[one.stream] >= 0
            if one.kind == RST_STREAM or (one.flags & END_STREAM and one.kind in (DATA, HEADERS)):
                self.ended.add(one.stream)
                if one.kind == RST_STREAM:
                    self.sending = [other for other in self.sending if other != one.stream]

    def check_kept(self) -> None:
        protocol = self.protocol
        assert len(protocol.streams) <= protocol.table.places_taken <= LIMITS.streams
        assert set(protocol.table.paused) <= set(protocol.streams)
        unsent = sum(stream.unsent for stream in protocol.streams.values())
        assert protocol.outbox.unsent == unsent <= 4 * LIMITS.unsent + LARGEST_PART
        # A message that fits the windows goes out at once, whatever waits for the socket.
        assert protocol.outbox.size < LIMITS.high_water + 2 * LARGEST_PART + 200 * self.sent
        assert not protocol.table.is_closed or not protocol.streams

    def end(self) -> None:
        self.protocol.close(Http2Code.NO_ERROR)
        assert not self.protocol.streams
        assert not self.protocol.table.paused
        for call in self.client.calls:
            call.stream.release()
        assert self.protocol.table.places_taken == 0
        assert self.protocol.outbox.unsent == 0


@pytest.mark.parametrize("seed", range(examples(120)))
def test_random_frame_sequences_are_served(seed: int):
    Walk(seed).run(400)


def test_recorded_connections_are_served():
    """Recordings of grpcio's client: unary calls with and without deadlines, compressed ones, many at once, streams."""
    served = {}
    for path in RECORDED:
        client = RawClient(greet=False)
        client.send(path.read_bytes())
        served[path.stem] = [len(call.content) for call in client.calls]
        assert all(call.events == ["end"] for call in client.calls if call.content != b"\0\0\0\0\3one")
    assert served == {
        "gzip": [15, 31, 33, 35, 38, 40],
        "many": [12, 10, 6, 5, 7, 9, 11, 8, 13, 14, 15, 16, 5],
        "stream": [165, 8, 9],
        "unary": [15, 415, 815, 1215, 1615, 2015],
    }


def changed(content: bytes, random: Random) -> bytes:
    """The bytes of a connection with a few faults."""
    out = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = random.randrange(len(frames.PREFACE), len(out))
        end = min(at + random.choice((1, 1, 4, 9, 40)), len(out))
        fault = random.randrange(6)
        if fault == 0:
            out[at] = random.randrange(256)
        elif fault == 1:
            out[at] ^= 1 << random.randrange(8)
        elif fault == 2:
            del out[at:end]
        elif fault == 3:
            out[at:at] = out[at:end]
        elif fault == 4:
            out[at:end] = random.randbytes(end - at)
        else:
            other = random.choice(RECORDED).read_bytes()
            start = random.randrange(len(other))
            out[at:at] = other[start : start + random.randrange(300)]
    return bytes(out)


@pytest.mark.parametrize("seed", range(examples(80)))
def test_recorded_connections_with_faults(seed: int):
    random = Random(seed)
    for _ in range(30):
        content = changed(random.choice(RECORDED).read_bytes(), random)
        client = RawClient(RecordingApplication(random.choice((hold, echo))), LIMITS, greet=False)
        size = random.choice((1, 9, 100, len(content)))
        try:
            for at in range(0, len(content), size):
                receive(client.protocol, content[at : at + size])
                client.taken()
        except ProtocolError:
            assert client.protocol.table.is_closed
            client.taken()
        client.protocol.close(Http2Code.NO_ERROR)
        assert not client.protocol.streams
        assert client.protocol.outbox.unsent == 0
        assert sum(len(call.content) for call in client.calls) <= len(content)
