"""A client of the protocol that sends raw frames, and an application whose calls it can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hpack
import pytest

from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import Http2Code, Http2Limits, ProtocolError
from trident.app.worker.http2.headers import encode_fields
from trident.app.worker.http2.protocol import Http2Protocol
from trident.core.grpc.transport import CallStream, Fields, HeaderFields
from trident.core.inference.tensors import Buffer

REQUEST: Fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"), (b":authority", b"x"))
REQUEST_BLOCK = encode_fields(REQUEST)
HEADERS = HeaderFields((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = HeaderFields((b"grpc-status", b"0"))


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    content: bytes

    @property
    def number(self) -> int:
        """The content as one number: the code of RST_STREAM, the size of WINDOW_UPDATE."""
        return int.from_bytes(self.content, "big")


class Call:
    """The application's side of one stream. `answer` is called when the client has sent everything."""

    def __init__(self, stream: CallStream, head: Any, answer: Callable[[Call], None]) -> None:
        self.stream = stream
        self.head = head
        self.content = b""
        self.events: list[str] = []
        self.moves: list[int] = []
        self.memory: bytearray | None = None
        self._filled = 0
        self._answer = answer

    def room(self, size: int) -> memoryview | None:
        return None if self.memory is None else memoryview(self.memory)[self._filled : self._filled + size]

    def filled(self, size: int) -> None:
        assert self.memory is not None
        self.content += self.memory[self._filled : self._filled + size]
        self._filled += size

    def take(self, content: Buffer) -> None:
        self.content += content

    def leave_shared(self) -> None:
        self.events.append("leave_shared")

    def end(self) -> None:
        self.events.append("end")
        self._answer(self)

    def cancel(self) -> None:
        self.events.append("cancel")
        self.stream.release()

    def moved(self) -> None:
        self.moves.append(self.stream.unsent)

    def drained(self) -> None:
        self.events.append("drained")


def echo(call: Call) -> None:
    """Answer with what came, and let the stream go."""
    call.stream.send(HEADERS, (call.content,), len(call.content), TRAILERS)
    call.stream.release()


def hold(call: Call) -> None:
    """Leave the call unanswered: the test answers."""


@dataclass
class RecordingApplication:
    """Keeps every call. `began` is called in `open`, with the call."""

    answer: Callable[[Call], None] = echo
    began: Callable[[Call], None] = hold
    volatile: frozenset[bytes] = frozenset({b"grpc-timeout"})
    calls: list[Call] = field(default_factory=list)
    heads_parsed: int = 0
    is_exiting: bool = False

    def parse_head(self, fields: Fields) -> Any:
        self.heads_parsed += 1
        return fields

    def with_volatile(self, head: Any, fields: Fields) -> Any:
        return head + fields

    def open(self, stream: CallStream, head: Any) -> Call:
        call = Call(stream, head, self.answer)
        self.calls.append(call)
        self.began(call)
        return call

    def begin_exit(self) -> None:
        self.is_exiting = True


class RawClient:
    """A connection: bytes go straight into the protocol, and what it has for the socket is taken at once."""

    def __init__(
        self,
        application: RecordingApplication | None = None,
        limits: Http2Limits | None = None,
        *,
        settings: dict[int, int] | None = None,
        greet: bool = True,
    ) -> None:
        self.application = application or RecordingApplication()
        self.flushes = 0
        self.now = 1000.0
        self.protocol = Http2Protocol(limits or Http2Limits(), self.application, self._flush, self.now)
        self.decoder = hpack.Decoder()
        if greet:
            self.greeting = self.send(frames.PREFACE, frames.settings(settings or {}))

    def _flush(self) -> None:
        self.flushes += 1

    @property
    def calls(self) -> list[Call]:
        return self.application.calls

    def send(self, *parts: bytes) -> list[Frame]:
        """Send bytes, in one piece; what the server sends then."""
        self.protocol.receive(b"".join(parts))
        return self.taken()

    def taken(self) -> list[Frame]:
        """Return the bytes that the server has sent since the last call. Its socket takes everything."""
        whole = b""
        while self.protocol.outbox.size:
            parts, size = self.protocol.outbox.take()
            piece = b"".join(parts)
            assert len(piece) == size
            whole += piece
            self.protocol.outbox.pump()
        return split(whole)

    def tick(self, seconds: float) -> bool:
        self.now += seconds
        return self.protocol.tick(self.now)

    def refused(self, *parts: bytes) -> tuple[Http2Code, str]:
        """Send bytes for which the connection ends; the code and the text of its GOAWAY."""
        with pytest.raises(ProtocolError) as caught:
            self.protocol.receive(b"".join(parts))
        last = self.taken()[-1]
        assert last.kind == frames.GOAWAY
        assert last.content[8:].decode() == str(caught.value)
        assert not self.protocol.streams
        return Http2Code(int.from_bytes(last.content[4:8], "big")), str(caught.value)

    def request(self, stream: int, content: bytes = b"hello", *, ends: bool = True) -> list[Frame]:
        return self.send(
            headers_frame(stream),
            frames.frame(frames.DATA, frames.END_STREAM if ends else 0, stream, content),
        )

    def fields(self, frame: Frame) -> list[tuple[bytes, bytes]]:
        """The fields of a header section in one frame."""
        return [(bytes(name), bytes(value)) for name, value in self.decoder.decode(frame.content, raw=True)]


def headers_frame(stream: int, block: bytes = REQUEST_BLOCK, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame(frames.HEADERS, flags, stream, block)


def split(received: bytes) -> list[Frame]:
    found = []
    while received:
        size = int.from_bytes(received[:3], "big")
        stream = int.from_bytes(received[5:9], "big")
        assert len(received) >= 9 + size
        found.append(Frame(received[3], received[4], stream, received[9 : 9 + size]))
        received = received[9 + size :]
    return found


def cut(received: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames at the beginning, and the rest."""
    at = 0
    while len(received) - at >= frames.HEAD_SIZE:
        end = at + frames.HEAD_SIZE + int.from_bytes(received[at : at + 3], "big")
        if end > len(received):
            break
        at = end
    return split(received[:at]), received[at:]


def kinds(found: Sequence[Frame]) -> list[int]:
    return [frame.kind for frame in found]
