"""A caller of InvokeEndpointWithBidirectionalStream, as the emulator takes it: over HTTP/1.1."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from botocore.eventstream import EventStreamBuffer

from trident.tools.emulators.container import HOST
from trident.tools.emulators.sagemaker.invocation import encode

LIMIT_S = 30.0


class Caller:
    """One call: sends events in chunks, and reads those of the answer."""

    def __init__(self, port: int, **headers: str) -> None:
        self.socket = socket.create_connection((HOST, port), LIMIT_S)
        lines = [f"X-Amzn-SageMaker-{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = ["POST /endpoints/any/invocations-bidirectional-stream HTTP/1.1", "Host: h", *lines]
        self.socket.sendall("\r\n".join([*head, "Transfer-Encoding: chunked", "", ""]).encode())
        self.file = self.socket.makefile("rb")
        self.buffer = EventStreamBuffer()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def status(self) -> int:
        status = int(self.file.readline().split()[1])
        while self.file.readline() != b"\r\n":
            pass
        return status

    def send(self, payload: bytes, **headers: str) -> None:
        event = encode({":message-type": "event", ":event-type": "PayloadPart", **headers}, payload)
        # As the SDK signs it; and in two chunks, because they mean nothing.
        signed = encode({":chunk-signature": "any"}, event)
        for part in (signed[:20], signed[20:]):
            self.socket.sendall(b"%x\r\n%b\r\n" % (len(part), part))

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def events(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while size := int(self.file.readline(), 16):
            self.buffer.add_data(self.file.read(size))
            self.file.readline()
            for event in self.buffer:
                yield event.headers, event.payload
