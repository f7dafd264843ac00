"""Cuts the bytes of a stream into messages.

Source: gRPC's `PROTOCOL-HTTP2.md`, "Length-Prefixed-Message".
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from core.frontend.request_body import Allocate, RequestBody
from core.grpc.compression import too_large
from core.grpc.status import GrpcError, Status
from core.inference.tensors import Buffer

PREFIX: Final = 5
read_prefix: Final[Callable[[Buffer], tuple[int, int]]] = Struct(">BI").unpack_from
"""The flag of a message and its size in bytes."""
NO_MEMORY = "there is no memory for a message of {} bytes"


class Message(NamedTuple):
    """A whole message. `compressed` is the flag of its prefix."""

    compressed: bool
    content: Buffer


class MessageReader:
    """Takes the bytes of one stream. A large message is received in place, in memory of `allocate` where it has some.

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
        """Whether the bytes taken so far end with the end of a message."""
        return self._body is None and not self._prefix

    @property
    def received(self) -> int:
        """How many bytes of the message that is arriving are there."""
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
        """`size` bytes were received into the room. Returns the message if that was its end."""
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
                room = self._body_room(len(view))
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

    def _body_room(self, size: int) -> memoryview:
        room = self.room(size)
        assert room is not None
        return room

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
