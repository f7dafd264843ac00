"""The header sections that a server sends: the one before its messages, and the trailers with the status.

Source: gRPC's `PROTOCOL-HTTP2.md`, "Responses".
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote_from_bytes

from core.errors import ErrorHints, ServerError
from core.grpc.status import LONGEST_TEXT, GrpcError, Status, hint_of, message_of, status_of
from core.grpc.transport import Fields, HeaderFields

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
