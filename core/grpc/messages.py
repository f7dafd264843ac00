"""Messages on the wire: as they arrive, how much memory those that are not complete may hold, their compression, and
protobuf's format.

Source: gRPC's `PROTOCOL-HTTP2.md`, "Length-Prefixed-Message".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from trident.core.buffers import Allocate, Receiving, RequestBody, UnfinishedBodies
from trident.core.frontend.compression import CONTAINERS, inflate
from trident.core.grpc.status import GrpcError, MalformedMessage, Status, too_large
from trident.core.inference.tensors import Buffer
from trident.core.waiting import Deadlines

PREFIX: Final = 5
read_prefix: Final[Callable[[Buffer], tuple[int, int]]] = Struct(">BI").unpack_from
"""The flag of a message and its size in bytes."""
NO_MEMORY = "there is no memory for a message of {} bytes"


class Message(NamedTuple):
    """A whole message. `compressed` is the flag of its prefix."""

    compressed: bool
    content: Buffer


class MessageReader:
    """Takes the bytes of one stream. A large message is received directly into memory of `allocate` where it has some.

    A message longer than `limit` bytes is refused by its prefix, before there is memory for it. `offset(size)` is where
    in a message of `size` bytes the tensors probably begin: that byte is aligned. All methods raise GrpcError; after
    that the reader is of no use.
    """

    __slots__ = ("_allocate", "_body", "_compressed", "_limit", "_offset", "_prefix", "_slow")

    def __init__(self, limit: int, allocate: Allocate | None, offset: Callable[[int], int]) -> None:
        self._limit = limit
        self._offset = offset
        self._allocate = allocate
        self._prefix = bytearray()
        self._compressed = False
        self._body: RequestBody | None = None
        self._slow: RequestBody | None = None

    @property
    def is_between(self) -> bool:
        """True if the bytes taken so far end with the end of a message."""
        return self._body is None and not self._prefix

    @property
    def received(self) -> int:
        """Bytes of the arriving message that are there."""
        return len(self._prefix) if self._body is None else PREFIX + self._body.got

    def room(self, size: int) -> memoryview | None:
        """Memory for the next bytes of a message, at most `size`; None if the next ones have to be taken."""
        body = self._body
        if body is None:
            return None
        try:
            return body.room()[:size]
        except MemoryError:
            raise self._no_memory(body.length) from None

    def filled(self, size: int) -> Message | None:
        """`size` bytes were received into the memory. Returns the message if that was its end."""
        body = self._body
        assert body is not None
        body.got += size
        if body.got < body.length:
            return None
        self._body = self._slow = None
        return Message(self._compressed, body.memory)

    def leave_shared(self) -> None:
        """Move the message that was already being received at the last call out of the memory of `allocate`, as its
        client is slow. Raises MemoryError."""
        if self._body is not None and self._body is self._slow:
            self._body.leave_shared()
        self._slow = self._body

    def take(self, content: Buffer) -> list[Message]:
        """The messages that end within `content`. It is copied."""
        view = memoryview(content)
        messages: list[Message] = []
        while view:
            if self._body is not None:
                room = self.room(len(view))
                assert room is not None
                size = len(room)
                room[:] = view[:size]
                message = self.filled(size)
            else:
                size = min(PREFIX - len(self._prefix), len(view))
                self._prefix += view[:size]
                message = self._begin(view[size:]) if len(self._prefix) == PREFIX else None
                if message is not None:
                    size += len(message.content)
            if message is not None:
                messages.append(message)
            view = view[size:]
        return messages

    def _begin(self, rest: memoryview) -> Message | None:
        """A message whose prefix is complete, and whose content begins with `rest`; returned if that has all of it."""
        flag = self._prefix[0]
        size = int.from_bytes(self._prefix[1:], "big")
        self._prefix.clear()
        if flag > 1:
            raise GrpcError(Status.INTERNAL, f"a message begins with the flag {flag}, expected 0 or 1")
        if size > self._limit:
            raise too_large(size, self._limit)
        self._compressed = flag == 1
        if len(rest) >= size:
            return Message(self._compressed, bytes(rest[:size]))
        try:
            self._body = RequestBody(size, b"", self._offset(size), self._allocate)
        except MemoryError:
            raise self._no_memory(size) from None
        return None

    @staticmethod
    def _no_memory(size: int) -> GrpcError:
        return GrpcError(Status.RESOURCE_EXHAUSTED, NO_MEMORY.format(size), hint="send fewer large messages at once")


# Between two messages a client may wait as long as it likes.
LIMIT_S: Final = 60.0


class ReceivingMessage(Receiving, Protocol):
    def stall(self) -> None:
        """Nothing has arrived for LIMIT_S seconds at least."""


class UnfinishedMessages(UnfinishedBodies[ReceivingMessage]):
    """The messages that are being received. Those that make no progress end. On the hub's thread."""

    def __init__(self, deadlines: Deadlines, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(limit, now)
        self._deadlines = deadlines
        self._is_looking = False

    def grew(self, receiving: ReceivingMessage) -> None:
        super().grew(receiving)
        self._look_later()

    def expire(self) -> None:
        self._is_looking = False
        for receiving, progress in list(self._bodies.items()):
            if progress.received != progress.seen or receiving.is_held_up:
                progress.seen = progress.received
            else:
                receiving.stall()
        self._look_later()

    def _look_later(self) -> None:
        if self._bodies and not self._is_looking:
            self._is_looking = True
            self._deadlines.add(LIMIT_S, self)


# --- compression. Source: gRPC's `compression.md`; docs/spec/grpc.md section 6.


IDENTITY: Final = b"identity"
ENCODINGS: Final = frozenset({IDENTITY, b"gzip", b"deflate"})


@dataclass(frozen=True, slots=True)
class CompressionLevel:
    """A level of responses: zlib's own, and which encoding a client gets that accepts both."""

    effort: int
    encodings: tuple[bytes, ...]


_GZIP_FIRST = (b"gzip", b"deflate")
# gRPC's C core takes the first encoding that the client accepts for the level low, the last one for the others.
LEVELS: dict[str, CompressionLevel | None] = {
    "none": None,
    "low": CompressionLevel(1, _GZIP_FIRST),
    "medium": CompressionLevel(6, _GZIP_FIRST[::-1]),
    "high": CompressionLevel(9, _GZIP_FIRST[::-1]),
}


def response_encoding(level: CompressionLevel | None, accepted: bytes) -> bytes:
    """The encoding of a response, for a client that sent `accepted` as its grpc-accept-encoding."""
    if level is None or not accepted:
        return IDENTITY
    names = {name.strip() for name in accepted.split(b",")}
    return next((encoding for encoding in level.encodings if encoding in names), IDENTITY)


def inflate_message(message: Buffer, encoding: bytes, limit: int) -> bytes:
    """The message that `message` was compressed from, at most `limit` bytes. Raises GrpcError."""
    if encoding == IDENTITY:
        raise GrpcError(Status.INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding")
    try:
        content = inflate(message, CONTAINERS[encoding.decode()], limit)
    except ValueError as error:
        raise GrpcError(Status.INTERNAL, f"failed to decompress a message: {error}") from error
    if content is None:
        raise too_large(limit + 1, limit)
    return content


# --- protobuf: messages are parsed with their schema, or written and cut without it.
# Source: https://protobuf.dev/programming-guides/encoding/


def parse(type_name: str, content: Buffer) -> Any:
    """The message of the type `type_name` of Triton's service. Raises MalformedMessage.

    The first call in a process imports protobuf, which takes tens of milliseconds.
    """
    from google.protobuf.message import DecodeError

    from trident.core.protos import grpc_service_pb2

    message_type = getattr(grpc_service_pb2, type_name)
    try:
        return message_type.FromString(content if type(content) is bytes else bytes(content))
    except DecodeError:
        raise MalformedMessage from None


def serialized(type_name: str, **fields: Any) -> bytes:
    from trident.core.protos import grpc_service_pb2

    content: bytes = getattr(grpc_service_pb2, type_name)(**fields).SerializeToString()
    return content


VARINT: Final = 0
LENGTH: Final = 2


def varint(number: int) -> bytes:
    """A number from 0 below 2^64."""
    if number < 128:
        return bytes((number,))
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


@lru_cache(maxsize=1024)
def length_prefix(number: int, size: int) -> bytes:
    """The prefix of the `size` bytes of field `number`."""
    return varint(number << 3 | LENGTH) + varint(size)


def length_field(number: int, content: bytes) -> bytes:
    """A field that is a message or bytes, also if it is empty."""
    return length_prefix(number, len(content)) + content


def string_field(number: int, text: str) -> bytes:
    """A string; nothing for an empty one, as proto3 has it. A lone surrogate becomes a question mark."""
    return length_field(number, text.encode("utf-8", "replace")) if text else b""


def integer_field(number: int, value: int) -> bytes:
    """An int64, uint64 or bool; nothing for 0, as proto3 has it."""
    return varint(number << 3 | VARINT) + varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def packed_integers(number: int, values: tuple[int, ...]) -> bytes:
    """A repeated int64; nothing without values."""
    return length_field(number, b"".join([varint(v & 0xFFFF_FFFF_FFFF_FFFF) for v in values])) if values else b""


def read_length(buffer: Buffer, at: int) -> tuple[int, int]:
    """The number that stands at `at`, below 2^35, and where it ends. Raises ValueError, IndexError at the end."""
    size = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            return size, at
        shift += 7
        if shift > 28:
            raise ValueError("longer than any message")
