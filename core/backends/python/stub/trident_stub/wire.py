"""The frames between the server and a stub process, the process of one instance of a Python model.

    server -> stub                                  stub -> server
    START     JSON: what to do, once                STARTED   JSON: the result of START; FAILED: its reason
    EXECUTE   a batch of requests                   RESULT    records: the outcome of each request of a batch
    CANCEL    the client of a request went away     RESPONSE  a record: of a response sender
    CREDIT    `flags` responses were taken          WATCH     tell when the client of this request goes away
    ANSWER    JSON: the result of a CALL; FAILED    CALL      JSON: something other than an inference
    REPLY     a record: of a model that was asked   INFER     a record: a request to another model
    RELEASE   offsets of responses                  RELEASED  offsets of requests
    STOP      finalize the model, and end           DROP      no more replies to this INFER are wanted
                                                    TAKEN     the model took a reply to this INFER
                                                    LOG       JSON: a line of the model's log

A frame's number is that of the batch, the request, the CALL or the INFER; in RELEASE how many offsets it has. Both
ends import this module; it needs Python 3.9 and the standard library.

Tensors travel in records. A frame of records begins with a head, and with the layouts that it uses first:

    count     u32    records
    layouts   u32    bytes of the JSON, [[number, [[name, datatype, shape], ...], [requested output, ...]], ...]
    padding

    number    u64    of the request
    layout    u32    number of the layout of the tensors; of a FAILED record the code of the error
    flags     u16
    places    u16    0: the tensors follow each other, each with the size that its shape gives. Else their number
    text      u32    bytes of UTF-8: the message of an error
    fields    u32    bytes of a JSON object
    content   u64    bytes of the tensors in the frame
    places           for each tensor its offset and its size, u64 each
    text, fields, padding, content, padding

An offset counts from the beginning of the content, or, with its highest bit set, of the shared memory. The first half
of that memory belongs to the server, which puts the tensors of requests there, the second half to the stub.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING or __package__ != "trident_stub":  # in the server
    from trident.core.interprocess.frames import LARGE, PADDING, BadFrame
else:
    from .frames import LARGE, PADDING, BadFrame

START, EXECUTE, CANCEL, CREDIT, ANSWER, REPLY, RELEASE, STOP = range(1, 9)
STARTED, RESULT, RESPONSE, WATCH, CALL, INFER, RELEASED, DROP, TAKEN, LOG = range(16, 26)
TO_STUB = frozenset((START, EXECUTE, CANCEL, CREDIT, ANSWER, REPLY, RELEASE, STOP))
TO_SERVER = frozenset((STARTED, RESULT, RESPONSE, WATCH, CALL, INFER, RELEASED, DROP, TAKEN, LOG))

# Of a record, and FAILED of a frame too. LATER: the request is answered by its sender. AGAIN: the model gave it back.
# EMPTY: the record has no response, it only ends the responses. DECOUPLED: an INFER that takes any number of replies.
# WAITS: the sender of this response needs credit before it sends the next one. WITHIN: an INFER of an execution that
# does not end before the replies have come.
FINAL, FAILED, LATER, AGAIN, EMPTY, DECOUPLED, WAITS, WITHIN = 1, 2, 4, 8, 16, 32, 64, 128

# The responses, and their bytes, from which on a sender needs credit before it sends more.
FIRST_CREDIT = 128
FIRST_CREDIT_BYTES = 1 << 20

SHARED = 1 << 63

RECORD = struct.Struct("<QIHHIIQ")
PLACE = struct.Struct("<QQ")
_HEAD = struct.Struct("<IIQ")
_LIMIT = 1024

# Every datatype in the order of Triton's numbers, which begin at 1: its type code for DLPack, and its bits.
DATATYPES = {
    "BOOL": (6, 8),
    "UINT8": (1, 8),
    "UINT16": (1, 16),
    "UINT32": (1, 32),
    "UINT64": (1, 64),
    "INT8": (0, 8),
    "INT16": (0, 16),
    "INT32": (0, 32),
    "INT64": (0, 64),
    "FP16": (2, 16),
    "FP32": (2, 32),
    "FP64": (2, 64),
    "BYTES": (-1, 0),
    "BF16": (4, 16),
}

# Name, datatype and shape.
Description = tuple[str, str, tuple[int, ...]]
# Shared memory by its offset and its size in bytes.
ViewOf = Callable[[int, int], memoryview]
# Puts the bytes of a large tensor into shared memory and returns their offset; None if none is free.
Share = Callable[[Any], Optional[int]]


class MessageLayout:
    """The tensors that similar requests or responses have in common. `sizes` are in bytes, -1 for BYTES.

    `starts` are the places of the tensors in a run without gaps. `size` is that of the run; -1 with BYTES.
    """

    __slots__ = ("requested", "size", "sizes", "spans", "tensors")

    def __init__(self, tensors: tuple[Description, ...], requested: tuple[str, ...]) -> None:
        """Raises ValueError for a datatype that does not exist."""
        self.tensors = tensors
        self.requested = requested
        self.sizes = [size_of(datatype, shape) for _, datatype, shape in tensors]
        self.size = -1 if -1 in self.sizes else sum(self.sizes)
        self.spans: list[tuple[str, str, tuple[int, ...], int, int]] = []
        at = 0
        for (name, datatype, shape), size in zip(tensors, self.sizes):
            self.spans.append((name, datatype, shape, at, at + size))
            at += size


def size_of(datatype: str, shape: Iterable[int]) -> int:
    """The bytes of a tensor; -1 for BYTES, whose elements vary. Raises ValueError."""
    if datatype not in DATATYPES:
        raise ValueError(f"the datatype '{datatype}' does not exist")
    size = DATATYPES[datatype][1] // 8
    for dim in shape:
        if dim < 0:
            raise ValueError(f"a dimension is {dim}")
        size *= dim
    return -1 if datatype == "BYTES" else size


class SentLayouts:
    """Numbers the layouts that one end sends. The caller holds the lock that orders the frames."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, bool]] = {}
        self._new: list[Any] = []

    def find(self, key: Hashable) -> tuple[int, bool] | None:
        """The number of a layout, and whether its tensors may follow each other; None for a new one, to be added."""
        return self._known.get(key)

    def add(self, key: Hashable, tensors: Sequence[Description], requested: Sequence[str] = ()) -> tuple[int, bool]:
        """As `find`, for a new layout, which the next head introduces. Raises ValueError for an unknown datatype."""
        layout = MessageLayout(tuple(tensors), tuple(requested))
        may_follow = layout.size >= 0 and not any(start & 7 for _, _, _, start, _ in layout.spans)
        if len(self._known) >= _LIMIT:
            self._known.clear()
        found = self._known[key] = (len(self._known), may_follow)
        self._new.append(
            [found[0], [[name, datatype, list(shape)] for name, datatype, shape in tensors], list(requested)]
        )
        return found

    def head(self, count: int) -> bytes:
        """The head of a frame with `count` records."""
        if not self._new:
            return _HEAD.pack(count, 0, 0)
        layouts = json.dumps(self._new, separators=(",", ":")).encode()
        self._new.clear()
        return b"".join((_HEAD.pack(count, len(layouts), 0), layouts, PADDING[len(layouts) & 15]))


class KnownLayouts:
    """The layouts that the other end has introduced, as `make` returns them."""

    def __init__(self, make: Callable[[tuple[Description, ...], tuple[str, ...]], Any] = MessageLayout) -> None:
        self._make = make
        self.layouts: dict[int, Any] = {}

    def read_head(self, content: memoryview) -> tuple[int, int]:
        """The number of records, and where they begin. Raises BadFrame."""
        if len(content) < _HEAD.size:
            raise BadFrame("a frame without its head")
        count, size, _ = _HEAD.unpack_from(content)
        if not size:
            return count, _HEAD.size
        end = _HEAD.size + size
        try:
            for number, tensors, requested in json.loads(bytes(content[_HEAD.size : end])):
                described = tuple(
                    (str(name), str(datatype), tuple(map(int, shape))) for name, datatype, shape in tensors
                )
                self.layouts[int(number)] = self._make(described, tuple(map(str, requested)))
        except (ValueError, TypeError) as error:
            raise BadFrame(f"layouts that cannot be read: {error}") from None
        return count, end + len(PADDING[size & 15])


def write_record(
    parts: list[Any],
    number: int,
    layout: tuple[int, bool],
    contents: Sequence[Any],
    share: Share,
    *,
    flags: int = 0,
    fields: bytes = b"",
) -> None:
    """Append a record with these tensors, large ones in shared memory. `layout` is of SentLayouts."""
    layout_number, may_follow = layout
    lengths = [len(content) for content in contents]
    if may_follow and max(lengths, default=0) < LARGE:
        size = sum(lengths)
        parts.append(RECORD.pack(number, layout_number, flags, 0, 0, len(fields), size))
        if fields:
            parts += (fields, PADDING[len(fields) & 15])
        parts += contents
        parts.append(PADDING[size & 15])
        return
    places: list[bytes] = []
    inside: list[Any] = []
    at = 0
    for content, length in zip(contents, lengths):
        offset = share(content) if length >= LARGE else None
        if offset is not None:
            places.append(PLACE.pack(offset | SHARED, length))
            continue
        places.append(PLACE.pack(at, length))
        inside += (content, PADDING[length & 15])
        at += (length + 15) & -16
    parts.append(RECORD.pack(number, layout_number, flags, len(places), 0, len(fields), at))
    parts += places
    parts += (fields, PADDING[len(fields) & 15])
    parts += inside


def write_failure(parts: list[Any], number: int, code: int, message: str, flags: int = 0) -> None:
    """Append a record of an error; `code` is one of TritonError's."""
    text = message.encode("utf-8", "replace")
    parts += (RECORD.pack(number, code, flags | FAILED, 0, len(text), 0, 0), text, PADDING[len(text) & 15])


def write_mark(parts: list[Any], number: int, flags: int) -> None:
    """Append a record without tensors that says only what its flags say."""
    parts.append(RECORD.pack(number, 0, flags, 0, 0, 0, 0))


class Record:
    """A record that was read. `run` is the part of the frame where its tensors are; see `tensors_of`."""

    __slots__ = ("fields", "flags", "layout", "number", "places", "run", "text")

    number: int
    layout: int
    flags: int
    places: tuple[tuple[int, int], ...]
    text: str
    fields: bytes
    run: memoryview


def read_record(content: memoryview, at: int) -> tuple[Record, int]:
    """The record at `at`, and where the next one begins. Raises BadFrame."""
    if len(content) - at < RECORD.size:
        raise BadFrame("a frame with fewer records than it says")
    record = Record()
    record.number, record.layout, record.flags, places, text, fields, size = RECORD.unpack_from(content, at)
    at += RECORD.size
    if places:
        end = at + places * PLACE.size
        if end > len(content):
            raise BadFrame("a record that is shorter than its places")
        record.places = tuple(PLACE.iter_unpack(content[at:end]))
        at = end
    else:
        record.places = ()
    if text or fields:
        middle = at + text
        end = middle + fields
        record.text = str(content[at:middle], "utf-8", "replace") if text else ""
        record.fields = bytes(content[middle:end])
        at = (end + 15) & -16
    else:
        record.text, record.fields = "", b""
    end = at + size
    if end > len(content):
        raise BadFrame("a record that is shorter than its tensors")
    record.run = content[at:end]
    return record, (end + 15) & -16


def tensors_of(record: Record, sizes: Sequence[int], view_of: ViewOf) -> list[memoryview]:
    """The bytes of each tensor of a record that has places. `sizes` are those of the layout. Raises BadFrame."""
    if len(record.places) != len(sizes):
        raise BadFrame("a record with another number of tensors than its layout")
    found: list[memoryview] = []
    for (offset, size), expected in zip(record.places, sizes):
        if expected not in (-1, size):
            raise BadFrame(f"a tensor of {size} bytes whose shape has {expected}")
        if offset & SHARED:
            found.append(view_of(offset ^ SHARED, size))
        elif offset + size > len(record.run):
            raise BadFrame("a tensor that ends after its frame")
        else:
            found.append(record.run[offset : offset + size])
    return found
