"""What the header section at the start of a call says.

Source: gRPC's `PROTOCOL-HTTP2.md`, "Requests"; docs/spec/grpc.md sections 2 and 6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from core.grpc.compression import ENCODINGS, IDENTITY
from core.grpc.header_sections import ACCEPTED, HEADERS, NOT_ALLOWED, UNSUPPORTED_MEDIA
from core.grpc.metadata import Metadata
from core.grpc.status import GrpcError, Status
from core.grpc.transport import Fields, HeaderFields

if TYPE_CHECKING:
    from core.errors import ServerError
    from core.grpc.methods import Method

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
