"""Frames: their types and flags, and the bytes of those that are sent. Source: RFC 9113 sections 4 and 6."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

# Plain numbers, because a member of an enum takes longer to look up than a frame to parse.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE: Final = 9
DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME: Final = 16384
LARGEST_FRAME: Final = 2**24 - 1
LARGEST_WINDOW: Final = 2**31 - 1
"""Also the largest number of a stream, and the mask that takes off the reserved bit."""

_head = struct.Struct(">IBI")
read_head: Final[Callable[[bytes, int], tuple[int, int, int]]] = _head.unpack_from
"""(length << 8 | type, flags, stream with the reserved bit) at an offset."""
pack_head: Final[Callable[[int, int, int], bytes]] = _head.pack
read_settings: Final = struct.Struct(">HI").iter_unpack
_uint32 = struct.Struct(">I")
pack_uint32: Final = _uint32.pack
read_uint32: Final[Callable[[bytes, int], tuple[int]]] = _uint32.unpack_from
_setting: Final = struct.Struct(">HI").pack


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return pack_head(len(content) << 8 | kind, flags, stream) + content


def data_head(stream: int, size: int) -> bytes:
    """The head of a DATA frame that does not end its stream; `size` bytes of content follow it."""
    return pack_head(size << 8 | DATA, 0, stream)


def headers(stream: int, block: bytes, frame_size: int, *, ends: bool) -> bytes:
    """A header section, in as many frames as the client's largest frame asks for."""
    flags = END_STREAM if ends else 0
    if len(block) <= frame_size:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [frame(HEADERS, flags, stream, block[:frame_size])]
    for at in range(frame_size, len(block), frame_size):
        last = at + frame_size >= len(block)
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream, block[at : at + frame_size]))
    return b"".join(parts)


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_setting(key, value) for key, value in values.items()))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, pack_uint32(code))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, pack_uint32(size))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, pack_uint32(last_stream) + pack_uint32(code) + text.encode())
