"""Decodes header blocks. The tables of its codes are those of the `hpack` package.

The decoder of that package copies the rest of the block for each field, and takes integers of any length. Clients with
deadlines make a new block for each request, so decoding is on the way of a request. Source: RFC 7541.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault, StreamFault
from core.grpc.transport import Fields
from core.memo import Memo

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

    __slots__ = ("_capacity", "_entries", "_list_limit", "_most_fields", "_size", "changed")

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

        Raises ConnectionFault if it cannot be decoded, or has too many fields for that, and StreamFault if the fields
        exceed the limit: the table is as the client thinks it is then, so other streams go on.
        """
        self.changed = False
        fields: list[Field] = []
        entries = self._entries
        end = len(block)
        try:
            at = self._resize(block, end)
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
                    self._insert(field)
                    fields.append(field)
                elif first < 0x20:
                    field, at = self._literal(block, at, 0x0F)
                    fields.append(field)
                else:
                    raise _fault("index 0, or a table size update after a field")
            if at < end:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"more than {self._most_fields} header fields")
        except IndexError:
            raise _fault("the header block is cut off, or refers to an entry that the table does not have") from None
        if sum(map(len, chain.from_iterable(fields))) + ENTRY_OVERHEAD * len(fields) > self._list_limit:
            raise StreamFault(ErrorCode.ENHANCE_YOUR_CALM, f"the header fields exceed {self._list_limit} bytes")
        return tuple(fields)

    def _resize(self, block: bytes, end: int) -> int:
        """Take the table size updates at the beginning of a block; the offset after them."""
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
        return at

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

    def _insert(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
        if self._size + size > self._capacity:
            self._evict(self._capacity - size)
        if size <= self._capacity:
            self._entries.append(field)
            self._size += size
        self.changed = True

    def _evict(self, most: int) -> None:
        """Drop the oldest entries until the others have at most `most` bytes."""
        while self._entries and self._size > most:
            name, value = self._entries.pop(0)
            self._size -= len(name) + len(value) + ENTRY_OVERHEAD


def _fault(text: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.COMPRESSION_ERROR, text)


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
