"""The part of a frame that carries tensors: a description as JSON, then their bytes or their offsets.

meta size   u32    bytes of the JSON
text size   u32    bytes of the text after it
offsets     u64    one for each tensor in shared memory, as many as the frame's header says
meta        JSON   equal bytes for similar requests, so that the decoded document can be remembered
text        UTF-8  what differs between requests: the id
padding
tensors            those that are not in shared memory, one after the other
padding
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from trident.core.inference.tensors import Shape, TensorLayout, layout_of
from trident.core.interprocess.frames import PADDING, BadFrame
from trident.core.memo import Memo
from trident.core.remote.calls import read_plain

VERSION = 6

HELLO, REQUEST, CANCEL, CALL, RELEASE, ACK, TRACED = range(1, 8)
STATE, RESPONSE, RESULT = range(16, 19)
TO_ENGINE = frozenset((HELLO, REQUEST, CANCEL, CALL, RELEASE, ACK, TRACED))
TO_FRONT_END = frozenset((STATE, RESPONSE, RESULT))

FINAL = 1
FAILED = 2
STREAMED = 1
TIMED = 2


T = TypeVar("T")
# Shared memory by its offset and its size in bytes.
ViewOf = Callable[[int, int], memoryview]

_SIZES = struct.Struct("<II")
_OFFSET = struct.Struct("<Q")
_LONGEST_REMEMBERED = 4096


def block_head(meta: bytes, text: bytes = b"", offsets: Sequence[int] = ()) -> bytes:
    """All that stands before the tensors, padded."""
    parts = [_SIZES.pack(len(meta), len(text)), *map(_OFFSET.pack, offsets), meta, text]
    parts.append(PADDING[sum(map(len, parts)) & 15])
    return b"".join(parts)


class TensorMeta(NamedTuple):
    """A tensor as a meta document describes it. `size` is in bytes."""

    name: str
    datatype: str
    shape: Shape
    size: int
    is_shared: bool


def layout_in_frame(tensors: Iterable[TensorMeta]) -> TensorLayout:
    """The layout of the tensors that are in the frame."""
    return layout_of([tensor[:4] for tensor in tensors if not tensor.is_shared])


def contents_of(
    tensors: Sequence[TensorMeta], content: memoryview, at: int, offsets: Sequence[int], view_of: ViewOf
) -> list[memoryview]:
    """The bytes of each tensor: from the frame's `content`, beginning at `at`, or `view_of(offset, size)`.

    Raises BadFrame.
    """
    if sum(tensor.is_shared for tensor in tensors) != len(offsets):
        raise BadFrame("the block has another number of offsets than of tensors in shared memory")
    following = iter(offsets)
    found: list[memoryview] = []
    for tensor in tensors:
        if tensor.is_shared:
            found.append(view_of(next(following), tensor.size))
        else:
            found.append(content[at : at + tensor.size])
            at += tensor.size
    return found


class BlockReader(Generic[T]):
    """Reads blocks, on one thread. `parse` turns a meta document into what the message needs, or raises ValueError."""

    def __init__(self, parse: Callable[[Any], T]) -> None:
        self._parse = parse
        self._known: Memo[bytes, T] = Memo(1024)

    def read(self, content: memoryview, shared: int) -> tuple[T, str, tuple[int, ...], int]:
        """What `parse` returned, the text, the offsets, and where the tensors begin. Raises BadFrame."""
        if len(content) < 8:
            raise BadFrame("a block without its sizes")
        meta_size, text_size = _SIZES.unpack_from(content)
        at = 8 + 8 * shared
        end = at + meta_size + text_size
        if end > len(content):
            raise BadFrame("a block that is shorter than its sizes")
        meta = bytes(content[at : at + meta_size])
        parsed = self._known.get(meta)
        if parsed is None:
            parsed = self._learn(meta)
        offsets = tuple([_OFFSET.unpack_from(content, 8 + 8 * i)[0] for i in range(shared)]) if shared else ()
        return parsed, _text(content[end - text_size : end]) if text_size else "", offsets, (end + 15) & -16

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
