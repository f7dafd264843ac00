"""What the gRPC front end and the HTTP/2 layer of a server see of each other, as WSGI is for HTTP/1.

The server calls `Application.open` for each stream that a client begins, and then the Receiver that it returned. Both
sides are called on the hub's thread only. `app/worker/http2` is such a server; it knows nothing of gRPC.
Classes that name these protocols as their bases are called directly where both are compiled (docs/compiled.md).
Source: RFC 9113 sections 5 and 8.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote_from_bytes

from trident.core.errors import ErrorHints, ServerError
from trident.core.grpc.status import LONGEST_TEXT, GrpcError, Status, hint_of, message_of, status_of
from trident.core.inference.tensors import Buffer

if TYPE_CHECKING:
    from trident.core.grpc.call import Method


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
    """Takes what the client sends on one stream."""

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
        """Some of what had to wait is on its way, and some is not."""

    def drained(self) -> None:
        """All that `Stream.send` was given is on its way, after some of it had to wait."""


class Stream(Protocol):
    """The way back to the client of one stream."""

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
        """The call has ended in the server, too, not only on the wire: its place is free for another stream.

        Called once for each stream. A client that resets streams cannot have more work done than it has places for.
        """


class Application(Protocol):
    """Serves the streams of a port."""

    __slots__ = ()

    @property
    def volatile(self) -> frozenset[bytes]:
        """Names of the fields whose values change from request to request, such as `grpc-timeout`."""

    def parse_head(self, fields: Fields) -> Any:
        """What a request's header section says, without its volatile fields.

        Pure: the server remembers the result by the fields, and shares it between streams. The server has checked the
        fields by RFC 9113 section 8, so `:method` is there, and `:scheme` and `:path` unless the method is CONNECT.
        """

    def with_volatile(self, head: Any, fields: Fields) -> Any:
        """`head` with the volatile fields of one request, of which there is at least one. Pure, too."""

    def open(self, stream: Stream, head: Any) -> Receiver:
        """A client began a stream. `head` is the result of `parse_head` or of `with_volatile`.

        The answer to a request that is not gRPC should have DATA that says so: a person reads it, and the stream keeps
        its place until the client has taken it.
        """

    def begin_exit(self) -> None:
        """The server stops: it serves the streams that are open, and those that its clients have sent already."""


# Source: gRPC's `PROTOCOL-HTTP2.md`, "Responses".


HINT = b"trident-hint"
# Clients with a retry policy wait so long before they send the call again.
PUSHBACK = b"grpc-retry-pushback-ms"
NOT_ALLOWED: Final = 405
UNSUPPORTED_MEDIA: Final = 415
NOT_GRPC: Final = b"this port serves gRPC: send a POST with the content type application/grpc\n"
_STATUS = b"grpc-status"
_MESSAGE = b"grpc-message"
_BEGIN: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
ACCEPTED: Fields = ((b"grpc-accept-encoding", b"identity, deflate, gzip"),)

HEADERS: Final = HeaderFields(*_BEGIN)
COMPRESSED: Final = {name: HeaderFields(*_BEGIN, (b"grpc-encoding", name)) for name in (b"gzip", b"deflate")}
OK: Final = HeaderFields((_STATUS, b"0"))
NOT_GRPC_TRAILERS: Final = HeaderFields((_STATUS, b"2"))
ONLY_OK: Final = HeaderFields(*_BEGIN, (_STATUS, b"0"))


def error_trailers(error: Exception, hints: ErrorHints, *, only: bool) -> HeaderFields:
    """The trailers that end a call with `error`. `only`: they are the whole answer."""
    fields = trailer_fields(status_of(error), message_of(error, hints))
    hint = "" if hints is ErrorHints.OFF else hint_of(error)
    if hint:
        fields += ((HINT, hint.encode()),)
    if isinstance(error, ServerError) and error.retry_after_s is not None:
        fields += ((PUSHBACK, b"%d" % (1000 * error.retry_after_s)),)
    if isinstance(error, GrpcError):
        fields += error.fields
    return HeaderFields(*_BEGIN, *fields) if only else HeaderFields(*fields)


def trailer_fields(status: Status, message: str) -> Fields:
    return (_STATUS, b"%d" % status), (_MESSAGE, percent_encoded(message))


def http_refusal(status: int) -> HeaderFields:
    """The headers of the answer to a request that is not a call of gRPC; NOT_GRPC follows, and its trailers."""
    more: Fields = ((b"allow", b"POST"),) if status == NOT_ALLOWED else ()
    return HeaderFields((b":status", b"%d" % status), (b"content-type", b"text/plain"), *more)


def percent_encoded(message: str) -> bytes:
    """A message as `grpc-message` carries it: printable ASCII except %, of bounded length, cut between characters.

    A lone surrogate becomes a question mark.
    """
    if len(message) <= LONGEST_TEXT and message.isascii() and message.isprintable() and "%" not in message:
        return message.encode()
    encoded = quote_from_bytes(message[:LONGEST_TEXT].encode("utf-8", "replace"), safe=_PRINTABLE)
    return (encoded if len(encoded) <= LONGEST_TEXT else _cut(message)).encode()


def _cut(message: str) -> str:
    parts: list[str] = []
    size = 0
    for character in message:
        part = quote_from_bytes(character.encode("utf-8", "replace"), safe=_PRINTABLE)
        size += len(part)
        if size > LONGEST_TEXT:
            break
        parts.append(part)
    return "".join(parts)


# Source: gRPC's `PROTOCOL-HTTP2.md` and `compression.md`; docs/spec/grpc.md section 6.


IDENTITY: Final = b"identity"
# zlib takes the container of a stream from the window bits.
_CONTAINERS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ENCODINGS: Final = frozenset({IDENTITY, *_CONTAINERS})
_PIECE = 1 << 20


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


def inflate(message: Buffer, encoding: bytes, limit: int) -> bytes:
    """The message that `message` was compressed from, at most `limit` bytes; no more than that is ever inflated.

    Raises GrpcError.
    """
    if encoding == IDENTITY:
        raise GrpcError(Status.INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding")
    stream = zlib.decompressobj(_CONTAINERS[encoding])
    # zlib takes the limit as a C int of the platform's ssize_t; one more byte than the limit tells that it is reached.
    try:
        content = stream.decompress(message, limit + 1)
    except zlib.error as error:
        raise GrpcError(Status.INTERNAL, f"failed to decompress a message: {error}") from error
    if len(content) > limit:
        raise too_large(len(content), limit)
    if not stream.eof:
        raise GrpcError(Status.INTERNAL, "failed to decompress a message: it ends before the compressed data does")
    if stream.unused_data:
        raise GrpcError(Status.INTERNAL, "failed to decompress a message: there is more after the compressed data")
    return content


def deflate(parts: Sequence[Buffer], encoding: bytes, effort: int) -> bytes:
    """The parts of a message, compressed as one stream."""
    stream = zlib.compressobj(effort, wbits=_CONTAINERS[encoding])
    pieces = [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)


def too_large(size: int, limit: int) -> GrpcError:
    """The error for a message of `size` bytes, or of more for a compressed one."""
    return GrpcError(
        Status.RESOURCE_EXHAUSTED,
        f"Received message larger than max ({size} vs. {limit})",
        hint="send fewer items in one message",
    )


# Source: gRPC's `PROTOCOL-HTTP2.md`, "Requests"; docs/spec/grpc.md sections 2 and 6.


# Callers add fields for tracing, too, each with a value of its own.
VOLATILE: Final = frozenset(
    {b"grpc-timeout", b"grpc-trace-bin", b"traceparent", b"tracestate", b"x-request-id", b"x-cloud-trace-context"}
)
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:\+proto)?(?:;|\Z)").match
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])\Z").match
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_POST: Final = b"POST"


@dataclass(slots=True, kw_only=True, eq=False)
class RequestHead:
    """Shared by all calls that begin with the same section, so nothing of it is changed after it was made.

    `method` is None for an unknown one, `http_status` 0 for a call of gRPC and else the status of the refusal. `error`
    refuses the call before its message is read. `timeout_s` is None without a deadline. `encoding` is that of the
    messages from the client, `response_encoding` that of the responses, which begin with `response_headers`.
    `forwarded` are the pairs of metadata that become parameters of an inference request.
    """

    path: str
    method: Method | None
    metadata: Metadata
    encoding: bytes = IDENTITY
    response_encoding: bytes = IDENTITY
    response_headers: HeaderFields = HEADERS
    timeout_s: float | None = None
    http_status: int = 0
    error: ServerError | None = None
    forwarded: tuple[tuple[str, str], ...] = ()


def read_head(fields: Fields, methods: dict[str, Method]) -> RequestHead:
    """The head, without what depends on the options. Of a field that was sent twice the last one counts."""
    seen = dict(fields)
    path = seen.get(b":path", b"").decode("latin-1")
    head = RequestHead(path=path, method=methods.get(path), metadata=Metadata(fields))
    if seen.get(b":method") != _POST:
        head.http_status = NOT_ALLOWED
    elif not _CONTENT_TYPE(seen.get(b"content-type", b"")):
        head.http_status = UNSUPPORTED_MEDIA
    elif head.method is None:
        head.error = GrpcError(
            Status.UNIMPLEMENTED,
            f"unknown method {path}",
            hint="the services are inference.GRPCInferenceService and grpc.health.v1.Health",
        )
    else:
        _read_encoding(head, seen.get(b"grpc-encoding"))
        _read_timeout(head, seen.get(b"grpc-timeout"))
    return head


def with_volatile(head: RequestHead, fields: Fields) -> RequestHead:
    """A copy of `head` with the VOLATILE fields of one request, without what depends on the options."""
    copy = replace(head, metadata=Metadata(head.metadata.fields + fields))
    if copy.error is None:
        _read_timeout(copy, dict(fields).get(b"grpc-timeout"))
    return copy


def _read_encoding(head: RequestHead, encoding: bytes | None) -> None:
    if encoding is None:
        return
    head.encoding = encoding
    if encoding not in ENCODINGS:
        head.error = GrpcError(
            Status.UNIMPLEMENTED,
            f"Compression algorithm '{encoding.decode('latin-1')}' is not supported",
            hint="use gzip, deflate or no compression",
            fields=ACCEPTED,
        )


def _read_timeout(head: RequestHead, timeout: bytes | None) -> None:
    if timeout is None:
        return
    found = _TIMEOUT(timeout)
    if found is None:
        head.error = GrpcError(Status.INTERNAL, f"invalid grpc-timeout '{timeout[:32].decode('latin-1')}'")
    else:
        head.timeout_s = int(found[1]) * _SECONDS[found[2]]


# Source: gRPC's `PROTOCOL-HTTP2.md`, "Custom-Metadata".


_BINARY = b"-bin"
# Fields of the protocol itself.
_RESERVED: Final = frozenset({b"te", b"content-type", b"user-agent"})
_RESERVED_PREFIXES: Final = (b":", b"grpc-")


class Metadata:
    """Names are in lower case; one that was sent several times has its values in their order."""

    __slots__ = ("fields",)

    def __init__(self, fields: Fields) -> None:
        self.fields = tuple(field for field in fields if not field[0].startswith(b":"))

    def text(self, name: str) -> str | None:
        """The value of `name` as Latin-1, several joined by commas; None without it."""
        key = name.encode("latin-1", "replace").lower()
        values = [value for found, value in self.fields if found == key]
        return b",".join(values).decode("latin-1") if values else None

    def binary(self, name: bytes) -> list[bytes]:
        """The values of a name that ends with -bin. Raises GrpcError if one is not base64."""
        return [each for found, value in self.fields if found == name for each in decode_binary(value)]


def is_custom(name: bytes) -> bool:
    """Whether a field belongs to the caller, not to HTTP/2 or gRPC."""
    return name not in _RESERVED and not name.startswith(_RESERVED_PREFIXES)


def decode_binary(value: bytes) -> list[bytes]:
    """The values in one -bin field: base64 with or without its padding; several are separated by commas."""
    try:
        return [b64decode(each + b"=" * (-len(each) % 4), validate=True) for each in value.split(b",")]
    except Base64Error as error:
        raise GrpcError(Status.INTERNAL, f"binary metadata is not base64: {error}") from error


def encode_binary(value: bytes) -> bytes:
    """A value of a -bin field, without padding."""
    return b64encode(value).rstrip(b"=")
