"""The interface between the gRPC front end and an HTTP/2 server, as WSGI is for HTTP/1.

The server calls `Application.open` for each stream that a client begins, and then the Receiver that it returned. Both
sides are called on the hub's thread only. `app/worker/http2` is such a server; it knows nothing of gRPC.
Classes that name these protocols as their bases are called directly where both are compiled (docs/compiled.md).
Source: RFC 9113 sections 5 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trident.core.inference.tensors import Buffer

Fields = tuple[tuple[bytes, bytes], ...]


class HeaderFields:
    """A header section that is sent again and again: names in lower case, and values.

    `block` is for the server, which keeps the encoded section in it.
    """

    __slots__ = ("block", "fields")

    def __init__(self, *fields: tuple[bytes, bytes]) -> None:
        self.fields: Fields = fields
        self.block: bytes | None = None


class Receiver(Protocol):
    """Receives the messages of the client on one stream."""

    __slots__ = ()

    def room(self, size: int) -> memoryview | None:
        """Memory for the next bytes, at most `size`, which are then received into it. None: they come by `take`."""

    def filled(self, size: int) -> None:
        """`size` bytes were received into the memory that `room` gave."""

    def take(self, content: Buffer) -> None:
        """The next bytes, in order. `content` is valid during the call only, unless it is `bytes`."""

    def leave_shared(self) -> None:
        """Called every few seconds: a message of which the beginning was there the last time must not stay in memory
        that others may need. Raises MemoryError."""

    def end(self) -> None:
        """The client has sent everything."""

    def cancel(self) -> None:
        """The client has reset the stream, or the connection has ended. Nothing can be sent any more."""

    def moved(self) -> None:
        """Called when a part of the waiting data was sent."""

    def drained(self) -> None:
        """All that `CallStream.send` was given was sent, after some of it had to wait."""


class CallStream(Protocol):
    """Sends messages to the client of one stream."""

    __slots__ = ()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the client's windows, or for its socket."""

    @property
    def peer(self) -> str:
        """The client's address, for the log."""

    def send(
        self,
        headers: HeaderFields | None,
        parts: Sequence[Buffer] = (),
        size: int = 0,
        trailers: HeaderFields | None = None,
    ) -> None:
        """Send a header section, then DATA of `size` bytes in all, then trailers, which end the stream.

        Trailers of a stream that has sent no headers are its one header section, so they have `:status`. Takes over the
        parts. Does not block: what the client's windows hold up waits, and `Receiver.drained` is called afterwards.
        Does nothing after the end of the stream.
        """

    def pause(self) -> None:
        """Let the client's window run out: what it sends beyond that waits at the client."""

    def resume(self) -> None:
        """Undo `pause`."""

    def reset(self) -> None:
        """End the stream at once, with CANCEL. `Receiver.cancel` is not called."""

    def release(self) -> None:
        """Free the stream's slot, because no work of the call runs in the server any more.

        Called once for each stream. A client that resets streams cannot have more work done than it has slots.
        """


class Application(Protocol):
    """Serves the streams of a port."""

    __slots__ = ()

    @property
    def volatile(self) -> frozenset[bytes]:
        """Names of the fields whose values change from request to request, such as `grpc-timeout`."""

    def parse_head(self, fields: Fields) -> Any:
        """The meaning of a request's header section without its volatile fields.

        Pure: the server remembers the result by the fields, and shares it between streams. The server has checked the
        fields by RFC 9113 section 8, so `:method` is there, and `:scheme` and `:path` unless the method is CONNECT.
        """

    def with_volatile(self, head: Any, fields: Fields) -> Any:
        """`head` with the volatile fields of one request, of which there is at least one. Pure, too."""

    def open(self, stream: CallStream, head: Any) -> Receiver:
        """A client began a stream. `head` is the result of `parse_head` or of `with_volatile`.

        The answer to a request that is not gRPC should have DATA that says so: a person reads it, and the stream keeps
        its place until the client has taken it.
        """

    def begin_exit(self) -> None:
        """The server stops: it serves the streams that are open, and those that its clients have sent already."""
