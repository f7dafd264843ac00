"""The part of a frame that carries tensors: what they are, as JSON, and then their bytes, or where they lie.

meta size   u32   bytes of the JSON
text size   u32   bytes of the text after it
places      u64   one for each tensor in the arena, as many as the frame says
meta        JSON  the same bytes for like requests, so that what they decode to can be remembered
text        UTF-8 what differs from request to request: its id
padding
tensors     those that are not in the arena, each padded
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from core.remote.frames import ALIGNMENT, HEADER, PADDING, BadFrame, Frame
from core.tensors import Buffer

T = TypeVar("T")

# From here on the arena is cheaper than the socket, which copies in and out of the kernel.
LARGE = 32768
_SIZES = struct.Struct("<II")
_PLACE = struct.Struct("<Q")
_REMEMBERED = 1024
_LONGEST_REMEMBERED = 4096


class Tensor(NamedTuple):
    """One tensor on its way. `place` is where it lies in the arena, -1 if `content` travels in the frame."""

    content: Buffer
    place: int = -1


def write_block(
    kind: int, number: int, meta: bytes, text: bytes, tensors: Sequence[Tensor], *, flags: int = 0
) -> bytes:
    """The whole frame."""
    places = b"".join([_PLACE.pack(tensor.place) for tensor in tensors if tensor.place >= 0])
    parts: list[Buffer] = [b"", _SIZES.pack(len(meta), len(text)), places, meta, text]
    size = _SIZES.size + len(places) + len(meta) + len(text)
    padding = -size % ALIGNMENT
    if padding:
        parts.append(PADDING[size % ALIGNMENT])
        size += padding
    for content, place in tensors:
        if place < 0:
            length = len(content)
            parts.append(content)
            size += length
            if length % ALIGNMENT:
                parts.append(PADDING[length % ALIGNMENT])
                size += -length % ALIGNMENT
    parts[0] = HEADER.pack(size, kind, flags, len(places) // _PLACE.size, number)
    return b"".join(parts)


class Block(NamedTuple):
    """What `BlockReader.read` found. `tensors` begin at `at` in `content`."""

    meta: Any
    text: str
    places: tuple[int, ...]
    content: memoryview
    at: int


class BlockReader(Generic[T]):
    """Reads blocks; `parse` makes of a meta document what the reader of the message needs, and may raise ValueError.

    One thread.
    """

    def __init__(self, parse: Callable[[Any], T]) -> None:
        self._parse = parse
        self._known: dict[bytes, T] = {}

    def read(self, frame: Frame) -> Block:
        """Raises BadFrame."""
        content = frame.content
        try:
            meta_size, text_size = _SIZES.unpack_from(content)
        except struct.error:
            raise BadFrame("a block without its sizes") from None
        at = _SIZES.size + frame.placed * _PLACE.size
        end = at + meta_size + text_size
        if end > len(content):
            raise BadFrame("a block that is shorter than its sizes")
        places = (
            tuple([_PLACE.unpack_from(content, _SIZES.size + i * _PLACE.size)[0] for i in range(frame.placed)])
            if frame.placed
            else ()
        )
        meta = bytes(content[at : at + meta_size])
        parsed = self._known.get(meta)
        if parsed is None:
            parsed = self._learn(meta)
        try:
            text = str(content[at + meta_size : end], "utf-8", "surrogatepass") if text_size else ""
        except UnicodeDecodeError:
            raise BadFrame("a text that is not UTF-8") from None
        return Block(parsed, text, places, content, end + (-end % ALIGNMENT))

    def _learn(self, meta: bytes) -> T:
        try:
            parsed = self._parse(orjson.loads(meta))
        except (ValueError, TypeError, KeyError) as error:
            raise BadFrame(f"a block that cannot be read: {error}") from None
        if len(meta) <= _LONGEST_REMEMBERED:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[meta] = parsed
        return parsed
