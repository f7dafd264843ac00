"""The header sections of requests: decoded, checked, and remembered.

Source: RFC 9113 section 8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from trident.app.worker.http2.frames import (
    END_HEADERS,
    END_STREAM,
    LARGEST_WINDOW,
    PADDED,
    PRIORITIZED,
    Http2Code,
    Http2Limits,
    ProtocolError,
    StreamError,
)
from trident.core.grpc.transport import Application, Fields, HeaderFields
from trident.core.memo import Memo

Field = tuple[bytes, bytes]

TABLE_SIZE: Final = 4096
"""SETTINGS_HEADER_TABLE_SIZE, which is left at its default."""
ENTRY_OVERHEAD: Final = 32
_STATIC: Final[Sequence[Field]] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC: Final = len(_STATIC)
_LATEST: Final = _FIRST_DYNAMIC - 1  # less the index of an entry: its place from the end of those that were inserted
_LARGEST_INTEGER: Final = 1 << 28
_KNOWN_TEXT_SIZE: Final = 64
_known_texts: Final[Memo[bytes, bytes]] = Memo(1024)


class HeaderDecoder:
    """The table of one connection's client, and the blocks that refer to it.

    `changed` is true if the latest block changed the table, so that the same bytes mean something else afterwards.
    """

    def __init__(self, list_limit: int) -> None:
        """`list_limit`: bytes of a section's fields, with 32 for each."""
        self._list_limit = list_limit
        self._most_fields = list_limit // ENTRY_OVERHEAD
        self._entries: list[Field] = []  # the latest one last
        self._size = 0
        self._capacity = TABLE_SIZE
        self.changed = False

    def decode(self, block: bytes) -> Fields:
        """The fields of `block`.

        Raises ProtocolError if it cannot be decoded, or has too many fields for that, and StreamError if the fields
        exceed the limit: the table is as the client thinks it is then, so other streams go on.
        """
        self.changed = False
        fields: list[Field] = []
        entries = self._entries
        end = len(block)
        try:
            at = updates = 0
            while at < end and block[at] & 0xE0 == 0x20:
                capacity = block[at] & 0x1F
                at += 1
                if capacity == 0x1F:
                    capacity, at = _integer(block, at, 0x1F)
                updates += 1
                if capacity > TABLE_SIZE or updates > 2:
                    raise _fault("the table size updates are not those that SETTINGS allow")
                self._capacity = capacity
                self._evict(capacity)
                self.changed = True
            for _ in range(self._most_fields):
                if at >= end:
                    break
                first = block[at]
                if first > 0x80:
                    index = first & 0x7F
                    at += 1
                    if index == 0x7F:
                        index, at = _integer(block, at, 0x7F)
                    fields.append(_STATIC[index] if index < _FIRST_DYNAMIC else entries[_LATEST - index])
                elif 0x40 <= first < 0x80:
                    field, at = self._literal(block, at, 0x3F)
                    size = len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
                    if self._size + size > self._capacity:
                        self._evict(self._capacity - size)
                    if size <= self._capacity:
                        self._entries.append(field)
                        self._size += size
                    self.changed = True
                    fields.append(field)
                elif first < 0x20:
                    field, at = self._literal(block, at, 0x0F)
                    fields.append(field)
                else:
                    raise _fault("index 0, or a table size update after a field")
            if at < end:
                raise ProtocolError(Http2Code.ENHANCE_YOUR_CALM, f"more than {self._most_fields} header fields")
        except IndexError:
            raise _fault("the header block is cut off, or refers to an entry that the table does not have") from None
        if sum(map(len, chain.from_iterable(fields))) + ENTRY_OVERHEAD * len(fields) > self._list_limit:
            raise StreamError(Http2Code.ENHANCE_YOUR_CALM, f"the header fields exceed {self._list_limit} bytes")
        return tuple(fields)

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index = block[at] & mask
        at += 1
        if index == mask:
            index, at = _integer(block, at, mask)
        if index:
            name = (_STATIC[index] if index < _FIRST_DYNAMIC else self._entries[_LATEST - index])[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _evict(self, most: int) -> None:
        """Drop the oldest entries until the others have at most `most` bytes."""
        while self._entries and self._size > most:
            name, value = self._entries.pop(0)
            self._size -= len(name) + len(value) + ENTRY_OVERHEAD


def _fault(text: str) -> ProtocolError:
    return ProtocolError(Http2Code.COMPRESSION_ERROR, text)


def _integer(block: bytes, at: int, number: int) -> tuple[int, int]:
    """The rest of an integer whose prefix is all ones, and the offset after it. Raises IndexError at the end."""
    shift = 0
    while True:
        octet = block[at]
        at += 1
        number += (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at
        shift += 7
        if shift > 28 or number > _LARGEST_INTEGER:
            raise _fault("an integer is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    at += 1
    size = first & 0x7F
    if size == 0x7F:
        size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise _fault("the header block ends within a string")
    text = block[at:end]
    return (_huffman(text) if first & 0x80 else text), end


def _huffman(text: bytes) -> bytes:
    known = _known_texts.get(text)
    if known is None:
        try:
            known = decode_huffman(text)
        except HPACKDecodingError as error:
            raise _fault("a string has a wrong Huffman code") from error
        if len(text) <= _KNOWN_TEXT_SIZE:
            _known_texts[text] = known
    return known


# Source: RFC 7541 sections 5 and 6.


_FIELDS: dict[tuple[bytes, bytes], int] = {}
_NAMES: dict[bytes, int] = {}
for _index, (_name, _value) in enumerate(HeaderTable.STATIC_TABLE, 1):
    _FIELDS.setdefault((_name, _value), _index)
    _NAMES.setdefault(_name, _index)


def block_of(headers: HeaderFields) -> bytes:
    """The header block of `headers`, which is encoded once."""
    block = headers.block
    if block is None:
        block = headers.block = encode_fields(headers.fields)
    return block


def encode_fields(fields: Fields) -> bytes:
    """The header block of `fields`: indexes of the static table, otherwise literals that no table keeps."""
    return b"".join(_field(name, value) for name, value in fields)


def _field(name: bytes, value: bytes) -> bytes:
    whole = _FIELDS.get((name, value))
    if whole is not None:
        return _encoded_integer(whole, 7, 0x80)
    known = _NAMES.get(name)
    return (_encoded_integer(known, 4, 0) if known is not None else b"\0" + _encoded_string(name)) + _encoded_string(
        value
    )


def _encoded_string(text: bytes) -> bytes:
    return _encoded_integer(len(text), 7, 0) + text


def _encoded_integer(number: int, bits: int, first: int) -> bytes:
    most = (1 << bits) - 1
    if number < most:
        return bytes((first | number,))
    number -= most
    encoded = bytearray((first | most,))
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class HeaderSections:
    """Puts the block of a section together. `stream` has one that is unfinished; 0: none has. `ends` is not zero if it
    ends its request.

    Source: RFC 9113 sections 6.2 and 6.10, and 10.5.1 for the limits.
    """

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._parts: list[bytes] = []
        self._size = 0
        self.stream = self.ends = 0

    def begin(self, stream: int, flags: int, content: bytes) -> bytes | None:
        """Take a HEADERS frame: the whole block, or None if CONTINUATION follows. Raises ProtocolError."""
        if flags & (PADDED | PRIORITIZED):
            start, end = 0, len(content)
            if flags & PADDED:
                if not content:
                    raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "the frame is too short for its padding")
                start, end = 1, end - content[0]
            if flags & PRIORITIZED:
                if len(content) < start + 5:
                    raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "the frame is too short for its priority")
                check_dependency(stream, content[start:])
                start += 5
            if start > end:
                raise ProtocolError(Http2Code.PROTOCOL_ERROR, "the padding exceeds the frame")
            content = content[start:end]
        if flags & END_HEADERS:
            return content
        if not stream:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "a client must not begin stream 0")
        self.stream, self.ends = stream, flags & END_STREAM
        self._add(content)
        return None

    def go_on(self, flags: int, content: bytes) -> bytes | None:
        """Take a CONTINUATION frame. As `begin`."""
        if not self.stream:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "CONTINUATION must follow an unfinished header section")
        self._add(content)
        if not flags & END_HEADERS:
            return None
        block = b"".join(self._parts)
        self._parts, self._size, self.stream = [], 0, 0
        return block

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if len(self._parts) > self._limits.header_frames or self._size > self._limits.header_list:
            raise ProtocolError(Http2Code.ENHANCE_YOUR_CALM, "the header section has too many bytes or frames")


def check_dependency(id: int, priority: bytes) -> None:
    """The one rule of priorities that counts; the rest of them is ignored. Source: RFC 7540 section 5.3.1."""
    if int.from_bytes(priority[:4], "big") & LARGEST_WINDOW == id:
        raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"stream {id} depends on itself")


# Source: RFC 9113 section 8.


RequestHead = tuple[Any, int | None]
"""The application's reading of a header section, and the content's length in bytes, if the client gives it."""

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

    def __init__(self, application: Application, list_limit: int) -> None:
        self._application = application
        self._volatile_fields = application.volatile
        self._decoder = HeaderDecoder(list_limit)
        self._by_fields: Memo[Fields, RequestHead] = Memo(16)
        self.known: Memo[bytes, RequestHead] = Memo(32)

    def read(self, block: bytes) -> RequestHead:
        """The head in a block that is not among the known ones.

        Raises StreamError if the section is malformed or too large, ProtocolError if it cannot be decoded.
        """
        fields = self.decode(block)
        try:
            return self._read(block, fields)
        except StreamError:
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
        known = tuple(lasting)
        head = self._by_fields.get(known)
        if head is None:
            length = check_request(known)
            head = self._application.parse_head(known), length
            if _size(known) <= _KNOWN_SIZE:
                self._by_fields[known] = head
        if changing:
            for name, _ in lasting[before:]:
                if name[:1] == b":":
                    raise _malformed("a pseudo-header field follows other fields")
            for _, value in changing:
                if _BAD_VALUE(value):
                    raise _malformed("a field has a value that is not allowed")
            head = self._application.with_volatile(head[0], tuple(changing)), head[1]
        if not self._decoder.changed and _size(fields) <= _KNOWN_SIZE:
            self.known[block] = head
        return head

    def read_trailers(self, block: bytes) -> None:
        """Check a section that ends a request. Raises StreamError and ProtocolError as `read`."""
        check_fields(_stripped(self.decode(block)))

    def decode(self, block: bytes) -> Fields:
        """The fields of a section, unchecked. Raises as `read`."""
        try:
            return self._decoder.decode(block)
        finally:
            if self._decoder.changed:
                self.known.clear()


def _stripped(fields: Fields) -> Fields:
    """The fields without blanks around a value, which RFC 9113 forbids and gRPC's own servers take."""
    return tuple((name, value if name[:1] == b":" else value.strip(b" \t")) for name, value in fields)


def check_request(fields: Fields) -> int | None:
    """The length of the content in bytes, if the section has it. Raises StreamError if it is malformed."""
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
    # A request must not name two hosts, of which two programs may take one each (RFC 9113 section 8.3.1).
    hosts = {value.lower() for name, value in fields[regular:] if name == b"host"}
    authority = pseudo.get(b":authority")
    if authority is not None:
        hosts.add(authority.lower())
    if len(hosts) > 1:
        raise _malformed("host and :authority differ")
    return check_fields(fields[regular:])


def check_fields(fields: Fields) -> int | None:
    """Check fields that are no pseudo-header fields; the length of the content in bytes, if they have it.

    Raises StreamError.
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


def _malformed(text: str) -> StreamError:
    return StreamError(Http2Code.PROTOCOL_ERROR, text)
