"""Counts the bytes of one call for the access log. Without that log no call passes through here.

Source: docs/http.md "The access log".
"""

from __future__ import annotations

from collections.abc import Sequence

from core.grpc.transport import HeaderFields, Receiver, Stream
from core.inference.tensors import Buffer


class CountedStream(Stream):
    """`received` and `sent` are the bytes of messages with their prefixes, as they are on the wire."""

    __slots__ = ("_stream", "received", "sent")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.received = 0
        self.sent = 0

    @property
    def unsent(self) -> int:
        return self._stream.unsent

    @property
    def peer(self) -> str:
        return self._stream.peer

    def send(
        self,
        headers: HeaderFields | None,
        parts: Sequence[Buffer] = (),
        size: int = 0,
        trailers: HeaderFields | None = None,
    ) -> None:
        self.sent += size
        self._stream.send(headers, parts, size, trailers)

    def pause(self) -> None:
        self._stream.pause()

    def resume(self) -> None:
        self._stream.resume()

    def reset(self) -> None:
        self._stream.reset()

    def release(self) -> None:
        self._stream.release()


class CountedReceiver(Receiver):
    """`receiver`, which was made for `stream`."""

    __slots__ = ("_receiver", "_stream")

    def __init__(self, stream: CountedStream, receiver: Receiver) -> None:
        self._stream = stream
        self._receiver = receiver

    def room(self, size: int) -> memoryview | None:
        return self._receiver.room(size)

    def filled(self, size: int) -> None:
        self._stream.received += size
        self._receiver.filled(size)

    def take(self, content: Buffer) -> None:
        self._stream.received += len(content)
        self._receiver.take(content)

    def leave_shared(self) -> None:
        self._receiver.leave_shared()

    def end(self) -> None:
        self._receiver.end()

    def cancel(self) -> None:
        self._receiver.cancel()

    def moved(self) -> None:
        self._receiver.moved()

    def drained(self) -> None:
        self._receiver.drained()
