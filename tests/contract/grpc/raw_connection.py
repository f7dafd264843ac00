"""A connection of raw HTTP/2 frames to the gRPC port, for what no client of gRPC does."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from app.worker.http2 import frames
from app.worker.http2.header_encoder import encode_fields
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess

LIMIT_S = 30.0
INFER = "/inference.GRPCInferenceService/ModelInfer"


class RawConnection:
    def __init__(self, server: ServerProcess, settings: dict[int, int] | None = None) -> None:
        self.socket = socket.create_connection((HOST, server.grpc_port), timeout=LIMIT_S)
        self._rest = b""
        self.send(frames.PREFACE, frames.settings(settings or {}))

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def begin(self, stream: int, path: str = INFER) -> None:
        """Send the header section of a call."""
        fields = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"a"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
        self.send(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, encode_fields(fields)))

    def call(self, stream: int, message: bytes, path: str = INFER) -> None:
        """Send a whole call with a small message."""
        self.begin(stream, path)
        content = b"\0" + len(message).to_bytes(4, "big") + message
        self.send(frames.frame(frames.DATA, frames.END_STREAM, stream, content))

    def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream, content. Raises ConnectionError at the end of the connection."""
        head = self._receive(frames.HEAD_SIZE)
        content = self._receive(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), content

    def next(self, kind: int) -> tuple[int, int, bytes]:
        """Flags, stream and content of the next frame of one kind; others are left out. Settings are acknowledged."""
        while True:
            found, flags, stream, content = self.frame()
            if found == frames.SETTINGS and not flags & frames.ACK:
                self.send(frames.frame(frames.SETTINGS, frames.ACK, 0))
            if found == kind:
                return flags, stream, content

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
