"""The header sections of calls: the head of a request, and the head and trailers of the answer.

Source: gRPC's `PROTOCOL-HTTP2.md`; docs/spec/grpc.md sections 2 and 6.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote_from_bytes

from trident.core.errors import ErrorHints, ServerError
from trident.core.grpc.messages import ENCODINGS, IDENTITY
from trident.core.grpc.status import LONGEST_TEXT, GrpcError, Status, hint_of, message_of, status_of
from trident.core.grpc.transport import CallStream, Fields, HeaderFields, Receiver

# --- answers

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

LOAD_FORMAT: Final = b"endpoint-load-metrics-format"

HEADERS: Final = HeaderFields(*_BEGIN)
COMPRESSED: Final = {name: HeaderFields(*_BEGIN, (b"grpc-encoding", name)) for name in (b"gzip", b"deflate")}
OK: Final = HeaderFields((_STATUS, b"0"))
NOT_GRPC_TRAILERS: Final = HeaderFields((_STATUS, b"2"))
ONLY_OK: Final = HeaderFields(*_BEGIN, (_STATUS, b"0"))


def error_trailers(error: Exception, hints: ErrorHints, *, only: bool) -> HeaderFields:
    """The trailers that end a call with `error`. `only`: they are the whole answer."""
    message = percent_encoded(message_of(error, hints))
    fields: Fields = ((_STATUS, b"%d" % status_of(error)), (_MESSAGE, message))
    hint = "" if hints is ErrorHints.OFF else hint_of(error)
    if hint:
        fields += ((HINT, hint.encode()),)
    if isinstance(error, ServerError) and error.retry_after_s is not None:
        fields += ((PUSHBACK, b"%d" % (1000 * error.retry_after_s)),)
    if isinstance(error, GrpcError):
        fields += error.fields
    return HeaderFields(*_BEGIN, *fields) if only else HeaderFields(*fields)


def ok_trailers(name: str, value: str) -> HeaderFields:
    """The trailers of a call that went well, and one field more."""
    return HeaderFields((_STATUS, b"0"), (name.encode(), value.encode()))


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


# --- requests

# Gets the GrpcFrontEnd.
MakeCall = Callable[[Any, CallStream, "RequestHead"], Receiver]


class Method:
    """A row of the method table of one front end.

    `group` is the group of restricted protocols, "" for none. `make_call` makes the receiver of a call. `ended` counts
    the calls by their status.
    """

    __slots__ = ("ended", "group", "make_call", "name", "path", "service")

    def __init__(self, service: str, name: str, group: str, make_call: MakeCall) -> None:
        self.service = service
        self.name = name
        self.path = f"/{service}/{name}"
        self.group = group
        self.make_call = make_call
        self.ended = [0] * len(Status)


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


def is_custom(name: bytes) -> bool:
    """Return true for a field of the caller's own, false for one of HTTP/2 or gRPC."""
    return name not in _RESERVED and not name.startswith(_RESERVED_PREFIXES)


def metadata_value(name: bytes, value: bytes) -> bytes:
    """The value that the caller gave to a field: one whose name ends with -bin is sent in base64, often unpadded."""
    if not name.endswith(b"-bin"):
        return value
    try:
        return binascii.a2b_base64(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return value


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
    `forwarded` are the pairs of metadata that become parameters of an inference request. `load_format` is the form in
    which the client wants the server's load with the answer, "" without.
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
    load_format: str = ""


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
        head.load_format = seen.get(LOAD_FORMAT, b"").decode("latin-1")
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
