"""Encodes header sections without a dynamic table, so that a section has the same bytes on all connections.

Source: RFC 7541 sections 5 and 6.
"""

from __future__ import annotations

from hpack.table import HeaderTable

from core.grpc.transport import Fields, HeaderFields

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
        return _integer(whole, 7, 0x80)
    known = _NAMES.get(name)
    return (_integer(known, 4, 0) if known is not None else b"\0" + _string(name)) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7, 0) + text


def _integer(number: int, bits: int, first: int) -> bytes:
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
