"""A connection of raw HTTP/2 frames to the gRPC port, for what no client of gRPC does."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import hpack

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from trident.app.worker.http2 import frames
from trident.app.worker.http2.headers import encode_fields
from trident.core.grpc.transport import Fields

LIMIT_S = 120.0
INFER = "/inference.GRPCInferenceService/ModelInfer"


class RawConnection:
    def __init__(self, server: ServerProcess, settings: dict[int, int] | None = None) -> None:
        self.socket = socket.create_connection((HOST, server.grpc_port), timeout=LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._decoder = hpack.Decoder()
        self.send(frames.PREFACE, frames.settings(settings or {}))

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def begin(self, stream: int, path: str = INFER, metadata: Fields = ()) -> None:
        """Send the header section of a call."""
        fields = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"a"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            *metadata,
        )
        self.send(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, encode_fields(fields)))

    def call(self, stream: int, message: bytes, path: str = INFER, metadata: Fields = ()) -> None:
        """Send a whole call with one message, which must fit the windows."""
        self.begin(stream, path, metadata)
        content = b"\0" + len(message).to_bytes(4, "big") + message
        last = (len(content) - 1) // frames.DEFAULT_FRAME * frames.DEFAULT_FRAME
        for start in range(0, len(content), frames.DEFAULT_FRAME):
            ends = frames.END_STREAM if start == last else 0
            self.send(frames.frame(frames.DATA, ends, stream, content[start : start + frames.DEFAULT_FRAME]))

    def answer(self) -> tuple[dict[bytes, bytes], bytes]:
        """Header fields and trailers of the one stream that is open, and the content of its DATA frames."""
        fields: dict[bytes, bytes] = {}
        parts = []
        while True:
            kind, flags, _, content = self.frame()
            if kind == frames.HEADERS:
                fields |= dict(self._decoder.decode(content, raw=True))
                if flags & frames.END_STREAM:
                    return fields, b"".join(parts)
            elif kind == frames.DATA:
                parts.append(content)

    def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream, content. Raises ConnectionError at the end of the connection."""
        head = self._receive(frames.HEAD_SIZE)
        content = self._receive(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), content

    def next(self, kind: int) -> tuple[int, int, bytes]:
        """Flags, stream and content of the next frame of one kind; others are left out. Settings are acknowledged, and
        pings unless they are asked for."""
        while True:
            found, flags, stream, content = self.frame()
            if found == frames.SETTINGS and not flags & frames.ACK:
                self.send(frames.frame(frames.SETTINGS, frames.ACK, 0))
            if found == kind:
                return flags, stream, content
            if found == frames.PING and not flags & frames.ACK:
                self.send(frames.frame(frames.PING, frames.ACK, 0, content))

    def ends(self) -> bool:
        """Read until the end of the connection."""
        with contextlib.suppress(ConnectionError):
            while True:
                self.frame()
        return True

    def _receive(self, size: int) -> bytes:
        while len(self._rest) < size:
            received = self.socket.recv(1 << 20)
            if not received:
                raise ConnectionError("the server closed the connection")
            self._rest += received
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def raw_connection(server: ServerProcess, **settings: Any) -> Iterator[RawConnection]:
    made = RawConnection(server, **settings)
    try:
        yield made
    finally:
        made.close()
