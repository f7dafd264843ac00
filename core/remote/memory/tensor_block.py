"""The part of a frame that carries tensors: what they are, as JSON, and then their bytes, or where they lie.

meta size   u32   bytes of the JSON
text size   u32   bytes of the text after it
places      u64   one for each tensor in the arena, as many as the frame says
meta        JSON  the same bytes for like requests, so that what they decode to can be remembered
text        UTF-8 what differs from request to request: its id
padding
tensors     those that are not in the arena, one after the other
padding
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from core.inference.layout import TensorLayout, layout_of
from core.inference.tensors import Buffer, Shape
from core.memo import Memo
from core.remote.calls.serialization import read_plain
from core.remote.transport.frames import HEADER, PADDING, BadFrame

T = TypeVar("T")
# Memory of the arena, by its place and its size in bytes.
OfArena = Callable[[int, int], memoryview]

# From here on the arena is cheaper than the socket, which copies in and out of the kernel.
LARGE = 32768
_SIZES = struct.Struct("<II")
_PLACE = struct.Struct("<Q")
_LONGEST_REMEMBERED = 4096


def block_head(meta: bytes, text: bytes = b"", places: Sequence[int] = ()) -> bytes:
    """What stands before the tensors, padded."""
    parts = [_SIZES.pack(len(meta), len(text)), *map(_PLACE.pack, places), meta, text]
    parts.append(PADDING[sum(map(len, parts)) & 15])
    return b"".join(parts)


def write_block(
    kind: int, number: int, head: bytes, tensors: Sequence[Buffer], *, flags: int = 0, placed: int = 0
) -> bytes:
    """The whole frame. `tensors` are those that travel in it."""
    size = len(head) + sum(map(len, tensors))
    padding = PADDING[size & 15]
    return b"".join((HEADER.pack(size + len(padding), kind, flags, placed, number), head, *tensors, padding))


class Described(NamedTuple):
    """A tensor as a meta document has it. `size` is in bytes."""

    name: str
    datatype: str
    shape: Shape
    size: int
    in_arena: bool


def layout_in_frame(tensors: Iterable[Described]) -> TensorLayout:
    """How those lie that travel in the frame."""
    return layout_of([tensor[:4] for tensor in tensors if not tensor.in_arena])


def contents_of(
    tensors: Sequence[Described], content: memoryview, at: int, places: Sequence[int], of_arena: OfArena
) -> list[memoryview]:
    """The bytes of each tensor: of the frame's `content`, from `at` on, or `of_arena(place, size)`. Raises BadFrame."""
    if sum(tensor.in_arena for tensor in tensors) != len(places):
        raise BadFrame("a block with other places than tensors in the arena")
    place = iter(places)
    found: list[memoryview] = []
    for tensor in tensors:
        if tensor.in_arena:
            found.append(of_arena(next(place), tensor.size))
        else:
            found.append(content[at : at + tensor.size])
            at += tensor.size
    return found


class BlockReader(Generic[T]):
    """Reads blocks; `parse` makes of a meta document what the reader of the message needs, and may raise ValueError.

    One thread.
    """

    def __init__(self, parse: Callable[[Any], T]) -> None:
        self._parse = parse
        self._known: Memo[bytes, T] = Memo(1024)

    def read(self, content: memoryview, placed: int) -> tuple[T, str, tuple[int, ...], int]:
        """What `parse` made, the text, the places, and where the tensors begin. Raises BadFrame."""
        if len(content) < 8:
            raise BadFrame("a block without its sizes")
        meta_size, text_size = _SIZES.unpack_from(content)
        at = 8 + 8 * placed
        end = at + meta_size + text_size
        if end > len(content):
            raise BadFrame("a block that is shorter than its sizes")
        meta = bytes(content[at : at + meta_size])
        parsed = self._known.get(meta)
        if parsed is None:
            parsed = self._learn(meta)
        places = tuple([_PLACE.unpack_from(content, 8 + 8 * i)[0] for i in range(placed)]) if placed else ()
        return parsed, _text(content[end - text_size : end]) if text_size else "", places, (end + 15) & -16

    def _learn(self, meta: bytes) -> T:
        try:
            parsed = self._parse(read_plain(meta))
        except (ValueError, TypeError, KeyError) as error:
            raise BadFrame(f"a block that cannot be read: {error}") from None
        if len(meta) <= _LONGEST_REMEMBERED:
            self._known[meta] = parsed
        return parsed


def _text(content: memoryview) -> str:
    try:
        return str(content, "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise BadFrame("a text that is not UTF-8") from None
