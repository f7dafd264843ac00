"""The limits of an HTTP/2 connection."""

from __future__ import annotations

from dataclasses import dataclass


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
    """What the client may send on one stream before it is taken, at least 65535; twice that on all together."""
    frame: int = 4 << 20
    """Content of one DATA frame."""
    held: int = 64 << 20
    """What streams that are paused have received, until the whole connection waits for them."""
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
    """Whether it is asked as well while no stream is open."""
    handshake_s: float = 20.0
    """From the beginning of the connection to the client's SETTINGS."""
    stall_s: float = 60.0
    """How long a client may leave a frame unfinished, or its windows closed to what waits for them."""
    drain_round_trip_s: float = 2.0
    """From the first GOAWAY of a drain to the last one, if the client does not answer the ping between them."""
