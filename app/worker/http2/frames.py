"""Frames: their types and flags, and the bytes of those that are sent. Source: RFC 9113 sections 4 and 6."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class Http2Code(IntEnum):
    """Why a stream or a connection ends. Source: RFC 9113 section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ProtocolError(Exception):
    """The connection must end: the two sides no longer agree on its state, or the client does not behave.

    The text is for the log and for the client's GOAWAY. Source: RFC 9113 section 5.4.1.
    """

    def __init__(self, code: Http2Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamError(Exception):
    """One stream must end, and the connection goes on. Source: RFC 9113 section 5.4.2."""

    def __init__(self, code: Http2Code, text: str) -> None:
        super().__init__(text)
        self.code = code


# Plain numbers, because a member of an enum takes longer to look up than a frame to parse.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE: Final = 9
DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME: Final = 16384
LARGEST_FRAME: Final = 2**24 - 1
LARGEST_WINDOW: Final = 2**31 - 1
"""Also the largest number of a stream, and the mask that takes off the reserved bit."""

_head = struct.Struct(">IBI")
read_head: Final[Callable[[bytes, int], tuple[int, int, int]]] = _head.unpack_from
"""(length << 8 | type, flags, stream with the reserved bit) at an offset."""
pack_head: Final[Callable[[int, int, int], bytes]] = _head.pack
setting_pairs: Final = struct.Struct(">HI").iter_unpack
_uint32 = struct.Struct(">I")
pack_uint32: Final = _uint32.pack
read_uint32: Final[Callable[[bytes, int], tuple[int]]] = _uint32.unpack_from
_setting: Final = struct.Struct(">HI").pack


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return pack_head(len(content) << 8 | kind, flags, stream) + content


def headers(stream: int, block: bytes, frame_size: int, *, ends: bool) -> bytes:
    """A header section, in as many frames as the client's largest frame asks for."""
    flags = END_STREAM if ends else 0
    if len(block) <= frame_size:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [frame(HEADERS, flags, stream, block[:frame_size])]
    for at in range(frame_size, len(block), frame_size):
        last = at + frame_size >= len(block)
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream, block[at : at + frame_size]))
    return b"".join(parts)


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_setting(key, value) for key, value in values.items()))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, pack_uint32(code))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, pack_uint32(size))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, pack_uint32(last_stream) + pack_uint32(code) + text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bytes unless the name says otherwise; `_s` are seconds.

    The defaults of pings are gRPC's (docs/spec/grpc.md section 6).
    """

    streams: int = 1024
    """Streams at a time. A stream that the client has reset counts until its call has ended in the server."""
    header_list: int = 16384
    """A header section. If its fields, with 32 bytes for each, have more, their stream ends; if the section has more on
    the wire, it is not decoded, so the connection ends."""
    header_frames: int = 8
    """HEADERS and CONTINUATION frames of one section."""
    window: int = 16 << 20
    """The window of a stream in bytes, at least 65535; twice that for all together."""
    frame: int = 4 << 20
    """Content of one DATA frame."""
    held: int = 64 << 20
    """The bytes that paused streams may hold before the whole connection waits for them."""
    high_water: int = 1 << 20
    """Bytes for the socket, until DATA waits in the streams instead."""
    unsent: int = 64 << 20
    """DATA that waits in the streams of a connection, until its client gets no new ones. At four times as much, answers
    that come on top of it are dropped, and their streams reset."""
    unsent_in_all: int = 512 << 20
    """The same for all connections together; it concerns those whose clients let something wait."""
    burst: int = 1000
    """Frames in a row that bring nothing forward: resets, pings, settings, empty frames."""
    rate: int = 100
    """As many more of them each second, and one for each answer."""
    ping_interval_s: float = 300.0
    """The distance of pings between which nothing was sent."""
    ping_interval_idle_s: float = 7200.0
    """The same while no stream is open."""
    ping_strikes: int = 2
    """Pings that came too early, until the connection ends. 0: any number."""
    keepalive_s: float = 7200.0
    """Silence after which the client is asked for a sign of life."""
    keepalive_timeout_s: float = 20.0
    """How long its answer may take."""
    keepalive_without_streams: bool = False
    """True: it is asked while no stream is open, too."""
    handshake_s: float = 20.0
    """From the beginning of the connection to the client's SETTINGS."""
    stall_s: float = 60.0
    """How long a frame may stay unfinished, or windows closed while data waits for them."""
    drain_round_trip_s: float = 2.0
    """From the first GOAWAY of a drain to the last one, if the client does not answer the ping between them."""


def read_settings(content: bytes) -> dict[int, int]:
    """The latest value of each setting, of unknown ones too. Raises ProtocolError. Source: RFC 9113 section 6.5.2."""
    if len(content) % 6:
        raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "SETTINGS must have six bytes for each setting")
    values: dict[int, int] = {}
    for key, value in setting_pairs(content):
        if key == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise ProtocolError(Http2Code.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE exceeds 2^31-1")
        if key == MAX_FRAME_SIZE and not DEFAULT_FRAME <= value <= LARGEST_FRAME:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is not within 2^14 and 2^24-1")
        if key == ENABLE_PUSH and value > 1:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
        values[key] = value
    return values


NEVER: Final = float("inf")


class Pings:
    """Counts the client's pings that come too early, which each answer of the server forgets, and asks a silent client
    for a sign of life, at `asked_at`. Times are in seconds.

    Source: gRPC's proposal A8, `Chttp2PingAbusePolicy` of its C core, and `keepalive.md`.
    """

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._strikes = 0
        self._latest = -NEVER
        self._answers = 0
        self.asked_at = NEVER

    def count(self, now: float, answers: int, *, idle: bool) -> None:
        """A ping came at `now`. `answers` is their number so far, `idle` that no stream is open.

        Raises ProtocolError, with the text by which gRPC's clients know that they must ping less.
        """
        if answers != self._answers:
            self._answers, self._strikes, self._latest = answers, 0, -NEVER
        limits = self._limits
        interval = limits.ping_interval_idle_s if idle else limits.ping_interval_s
        if now - self._latest < interval:
            self._strikes += 1
            if limits.ping_strikes and self._strikes > limits.ping_strikes:
                raise ProtocolError(Http2Code.ENHANCE_YOUR_CALM, "too_many_pings")
        self._latest = now

    def due(self, now: float, last_received: float, *, idle: bool) -> bytes:
        """The ping that asks; empty if it is not time. `idle`: no stream is open, so that nothing is at stake."""
        limits = self._limits
        is_silent = now - last_received > limits.keepalive_s
        if self.asked_at != NEVER or not is_silent or (idle and not limits.keepalive_without_streams):
            return b""
        self.asked_at = now
        return frame(PING, 0, 0, b"keepaliv")

    def has_failed(self, now: float) -> bool:
        """True if the client has not answered in time."""
        return now - self.asked_at >= self._limits.keepalive_timeout_s


# The content of the ping between the two GOAWAYs.
MARK: Final = b"draining"


class DrainState(Enum):
    """SERVING -> ASKED -> REFUSING. Source: RFC 9113 section 6.8."""

    SERVING = "all streams are welcome"
    ASKED = "the client is asked for no more streams, and those that it sent meanwhile are served"
    REFUSING = "new streams are refused"


class Drain:
    """Two GOAWAYs with a ping between them: what the client sent before it knew of the first one is served."""

    def __init__(self) -> None:
        self.since = 0.0
        self.state = DrainState.SERVING

    def begin(self, now: float) -> bytes:
        """The frames that ask for no more streams; empty if they have been sent."""
        if self.state is not DrainState.SERVING:
            return b""
        self.state, self.since = DrainState.ASKED, now
        return goaway(LARGEST_WINDOW, Http2Code.NO_ERROR) + frame(PING, 0, 0, MARK)

    def refuse(self, last_stream: int) -> bytes:
        """The GOAWAY that names the last stream that is served; empty if it has been sent, or none was asked for."""
        if self.state is not DrainState.ASKED:
            return b""
        self.state = DrainState.REFUSING
        return goaway(last_stream, Http2Code.NO_ERROR)
