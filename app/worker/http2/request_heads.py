"""The header sections of requests: decoded, checked, and remembered.

Source: RFC 9113 section 8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import StreamFault
from app.worker.http2.header_decoder import HeaderDecoder
from core.grpc.transport import Application, Fields
from core.memo import Memo

RequestHead = tuple[Any, int | None]
"""What the application made of a header section, and the length of the content in bytes, if the client says it."""

_KNOWN_SIZE: Final = 2048
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z").search
_LENGTH: Final = re.compile(rb"[0-9]{1,18}").fullmatch
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class RequestHeads:
    """The header sections of one connection's client.

    `known` has the heads by the bytes of their blocks, as long as the header table does not change. If it changes, a
    block is decoded, but what does not change from request to request is known by its fields.
    """

    __slots__ = ("_application", "_by_fields", "_decoder", "_volatile_fields", "known")

    def __init__(self, application: Application, list_limit: int) -> None:
        self._application = application
        self._volatile_fields = application.volatile
        self._decoder = HeaderDecoder(list_limit)
        self._by_fields: Memo[Fields, RequestHead] = Memo(16)
        self.known: Memo[bytes, RequestHead] = Memo(32)

    def read(self, block: bytes) -> RequestHead:
        """The head in a block that is not among the known ones.

        Raises StreamFault if the section is malformed or too large, ConnectionFault if it cannot be decoded.
        """
        fields = self.decode(block)
        try:
            return self._read(block, fields)
        except StreamFault:
            stripped = _stripped(fields)
            if stripped == fields:
                raise
            return self._read(block, stripped)

    def _read(self, block: bytes, fields: Fields) -> RequestHead:
        volatile = self._volatile_fields
        lasting: list[tuple[bytes, bytes]] = []
        changing: list[tuple[bytes, bytes]] = []
        before = len(fields)  # how many of the lasting ones come before the first that changes
        for field in fields:
            if field[0] in volatile:
                before = min(before, len(lasting))
                changing.append(field)
            else:
                lasting.append(field)
        head = self._checked(tuple(lasting))
        if changing:
            head = self._changed(head, tuple(changing), lasting[before:])
        if not self._decoder.changed and _size(fields) <= _KNOWN_SIZE:
            self.known[block] = head
        return head

    def read_trailers(self, block: bytes) -> None:
        """Check a section that ends a request. Raises StreamFault and ConnectionFault as `read`."""
        check_fields(_stripped(self.decode(block)))

    def decode(self, block: bytes) -> Fields:
        """The fields of a section, unchecked. Raises as `read`."""
        try:
            return self._decoder.decode(block)
        finally:
            if self._decoder.changed:
                self.known.clear()

    def _changed(self, lasting: RequestHead, changing: Fields, behind: Sequence[tuple[bytes, bytes]]) -> RequestHead:
        """A head with fields that change from request to request. `behind` are the lasting ones behind the first."""
        for name, _ in behind:
            if name[:1] == b":":
                raise _malformed("a pseudo-header field follows other fields")
        for _, value in changing:
            if _BAD_VALUE(value):
                raise _malformed("a field has a value that is not allowed")
        head, length = lasting
        return self._application.with_volatile(head, changing), length

    def _checked(self, fields: Fields) -> RequestHead:
        head = self._by_fields.get(fields)
        if head is None:
            length = check_request(fields)
            head = self._application.parse_head(fields), length
            if _size(fields) <= _KNOWN_SIZE:
                self._by_fields[fields] = head
        return head


def _stripped(fields: Fields) -> Fields:
    """The fields without blanks around a value, which RFC 9113 forbids and gRPC's own servers take."""
    return tuple((name, value if name[:1] == b":" else value.strip(b" \t")) for name, value in fields)


def check_request(fields: Fields) -> int | None:
    """The length of the content in bytes, if the section has it. Raises StreamFault if it is malformed."""
    regular = 0
    while regular < len(fields) and fields[regular][0][:1] == b":":
        regular += 1
    pseudo = dict(fields[:regular])
    if len(pseudo) != regular or not pseudo.keys() <= _PSEUDO:
        raise _malformed("a pseudo-header field is unknown, or there twice")
    if any(_BAD_VALUE(value) for value in pseudo.values()):
        raise _malformed("a pseudo-header field has a value that is not allowed")
    if pseudo.get(b":method") == b"CONNECT":
        if pseudo.keys() != {b":method", b":authority"}:
            raise _malformed("CONNECT has no :authority, or more than that")
    elif not pseudo.get(b":path") or not pseudo.get(b":method") or not pseudo.get(b":scheme"):
        raise _malformed("a pseudo-header field is missing")
    _check_host(pseudo.get(b":authority"), fields[regular:])
    return check_fields(fields[regular:])


def _check_host(authority: bytes | None, fields: Fields) -> None:
    """A request must not name two hosts, of which two programs may take one each. Source: RFC 9113 section 8.3.1."""
    hosts = {value.lower() for name, value in fields if name == b"host"}
    if authority is not None:
        hosts.add(authority.lower())
    if len(hosts) > 1:
        raise _malformed("host and :authority differ")


def check_fields(fields: Fields) -> int | None:
    """Check fields that are no pseudo-header fields; the length of the content in bytes, if they have it.

    Raises StreamFault.
    """
    length = None
    for name, value in fields:
        if not _NAME(name):
            raise _malformed("a field has a name that is not allowed")
        if _BAD_VALUE(value):
            raise _malformed("a field has a value that is not allowed")
        if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise _malformed("a field belongs to HTTP/1.1's connections")
        if name == b"content-length":
            if not _LENGTH(value) or length not in (None, int(value)):
                raise _malformed("content-length is not one number")
            length = int(value)
    return length


def _size(fields: Fields) -> int:
    return sum([len(name) + len(value) for name, value in fields])


def _malformed(text: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, text)
