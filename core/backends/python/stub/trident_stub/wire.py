"""The frames between the server and a stub process, the process of one instance of a Python model.

    server -> stub                                  stub -> server
    START     JSON: what to do, once                STARTED   JSON: the result of START; FAILED: its reason
    EXECUTE   a batch of requests                   RESULT    records: the outcome of each request of the open batch
    CANCEL    the client of a request went away     RESPONSE  a record: of a response sender
    CREDIT    u64: so many responses were taken     WATCH     tell when the client of this request goes away
    ANSWER    JSON: the result of a CALL; FAILED    CALL      JSON: something other than an inference
    REPLY     a record: of a model that was asked   INFER     a record: a request to another model
    RELEASE   offsets of responses                  RELEASED  offsets of requests
    STOP      finalize the model, and end           DROP      no more replies to this INFER are wanted
                                                    TAKEN     the model took a reply to this INFER
    RECLAIM   return free memory to the system      LOG       JSON: a line of the model's log

Each frame names what it belongs to, and its reader checks that. Its number is that of the batch, the request, the CALL
or the INFER; in RELEASE and RELEASED how many offsets it has; in the others 0. Numbers begin at 1, grow, and are never
used again. The number of a batch is that of its first request, and its records count on from there, so does the RESULT.
A RESULT belongs to the batch that is open; the other frames to something that is open or was. Whatever else comes, or
cannot be read, ends the process: nothing is read after a frame that was wrong. Both ends import this module; it needs
Python 3.9 and the standard library.

JSON is written by `to_json` and read by `from_json` at both ends. It is ASCII: what a str of Python can hold arrives as
it is, NaN and lone surrogates, too.

Tensors travel in records. A frame of records begins with a head, and with the layouts that it uses first:

    count     u32    records
    layouts   u32    bytes of the JSON, [[number, [[name, datatype, shape], ...], [requested output, ...]], ...]
    oldest    u64    number of the oldest layout that this frame and later ones use: those before it are forgotten
    the JSON, padding

    number    u64    of the request
    layout    u64    number of the layout of the tensors; of a FAILED record the code of the error
    content   u32    bytes of the tensors in the frame
    places    u32    0: the tensors follow each other, each with the size that its shape gives. Else their number
    text      u32    bytes of the JSON object with the rest; of a FAILED record of the message in UTF-8
    flags     u16
    0         u16
    places           for each tensor its offset and its size, u64 each
    text, padding, content, padding

and ends with its number and a mark, which are elsewhere if bytes of the frame were lost, or others are in it:

    number    u64    of the frame
    mark      u64

Layouts have the numbers 0, 1, 2, ... in the order in which they are introduced, in each direction. A number means the
same layout for the life of the connection.

An offset counts from the beginning of the content, or, with its highest bit set, of the shared memory. The first half
of that memory belongs to the server, which puts the tensors of requests there, the second half to the stub.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

# By name: a model may replace the functions of the module in its process.
from json import dumps, loads
from typing import TYPE_CHECKING, Any, Callable, Protocol

if TYPE_CHECKING or __package__ != "trident_stub":  # in the server
    from trident.core.interprocess.frames import LARGE, LARGEST, PADDING, BadFrame, frame
else:
    from .frames import LARGE, LARGEST, PADDING, BadFrame, frame

START, EXECUTE, CANCEL, CREDIT, ANSWER, REPLY, RELEASE, STOP, RECLAIM = range(1, 10)
STARTED, RESULT, RESPONSE, WATCH, CALL, INFER, RELEASED, DROP, TAKEN, LOG = range(16, 26)
TO_STUB = frozenset((START, EXECUTE, CANCEL, CREDIT, ANSWER, REPLY, RELEASE, STOP, RECLAIM))
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

RECORD = struct.Struct("<QQIIIHH")
PLACE = struct.Struct("<QQ")
_HEAD = struct.Struct("<IIQ")
_COUNT = struct.Struct("<Q")
_END = struct.Struct("<QQ")
_MARK = int.from_bytes(b"the end\n", "little")
# The number of a question whether the model is ready.
QUESTION = struct.Struct("<Q")
# Layouts that stay known from one frame to the next.
LAYOUTS = 1024
# Bytes of the tensors of one frame. The rest is for what is small: the head, errors, marks.
ROOM = LARGEST - (1 << 26)
_LONGEST_MESSAGE = 1 << 16

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


class SendingMemory(Protocol):
    """This end's half of the shared memory."""

    def share(self, content: Any) -> int | None:
        """Put the bytes of a large tensor into the memory and return their offset; None if none is free."""
        ...

    def unshare(self, offset: int) -> None:
        """Free what `share` put there, of which the other end was not told."""
        ...


def to_json(value: Any) -> bytes:
    """Raises TypeError for what JSON does not have, ValueError for an integer of thousands of digits."""
    return dumps(value).encode("ascii")


def from_json(content: bytes | memoryview) -> Any:
    """Return the value that `to_json` wrote. Raises BadFrame."""
    try:
        return loads(str(content, "ascii"))
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"JSON that cannot be read: {error}") from None


def count_frame(kind: int, number: int, count: int) -> bytes:
    return frame(kind, number, (_COUNT.pack(count),))


def read_count(content: memoryview) -> int:
    """Raises BadFrame."""
    if len(content) < _COUNT.size:
        raise BadFrame("a frame without its count")
    (count,) = _COUNT.unpack_from(content)
    return int(count)


class MessageLayout:
    """The tensors that similar requests or responses have in common. `sizes` are in bytes, -1 for BYTES.

    `starts` are the places of the tensors in a run without gaps. `size` is that of the run; -1 with BYTES.
    """

    __slots__ = ("requested", "size", "sizes", "spans", "tensors")

    def __init__(self, tensors: tuple[Description, ...], requested: tuple[str, ...]) -> None:
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

    def __init__(self, limit: int = LAYOUTS) -> None:
        self._limit = limit
        # In the order of their numbers, which follow each other.
        self._known: OrderedDict[Hashable, tuple[int, bool]] = OrderedDict()
        self._new: list[Any] = []
        self._next = 0

    def find(self, key: Hashable) -> tuple[int, bool] | None:
        """The number of a layout, and whether its tensors may follow each other; None for a new one, to be added."""
        return self._known.get(key)

    def add(self, key: Hashable, tensors: Sequence[Description], requested: Sequence[str] = ()) -> tuple[int, bool]:
        """As `find`, for a new layout, which the next head introduces. Raises ValueError for an unknown datatype."""
        layout = MessageLayout(tuple(tensors), tuple(requested))
        may_follow = layout.size >= 0 and not any(start & 7 for _, _, _, start, _ in layout.spans)
        described = [[name, datatype, list(map(int, shape))] for name, datatype, shape in tensors]
        number = self._next
        self._new.append([number, described, list(requested)])
        self._next += 1
        found = self._known[key] = (number, may_follow)
        return found

    def head(self, count: int) -> bytes:
        oldest = self._next - len(self._known)
        if not self._new:
            return _HEAD.pack(count, 0, oldest)
        layouts = to_json(self._new)
        return b"".join((_HEAD.pack(count, len(layouts), oldest), layouts, PADDING[len(layouts) & 15]))

    def sent(self) -> None:
        """Note that the frame with the last head is on its way: its layouts are known, the oldest are forgotten.

        Until then a later head introduces them, so that a frame which is not sent leaves nothing behind.
        """
        if self._new:
            self._new.clear()
            while len(self._known) > self._limit:
                self._known.popitem(last=False)


class KnownLayouts:
    """The layouts that the other end has introduced and not forgotten, as `make` returns them."""

    def __init__(self, make: Callable[[tuple[Description, ...], tuple[str, ...]], Any] = MessageLayout) -> None:
        self._make = make
        self._oldest = self._next = 0
        self.layouts: dict[int, Any] = {}

    def read_head(self, content: memoryview) -> tuple[int, int]:
        """The number of records, and where they begin. Raises BadFrame."""
        if len(content) < _HEAD.size:
            raise BadFrame("a frame without its head")
        count, size, oldest = _HEAD.unpack_from(content)
        if oldest != self._oldest:
            if not self._oldest < oldest <= self._next:
                raise BadFrame(f"layout {oldest} is the oldest, of those from {self._oldest} to {self._next}")
            for number in range(self._oldest, oldest):
                del self.layouts[number]
            self._oldest = oldest
        if not size:
            return count, _HEAD.size
        end = _HEAD.size + size
        if end > len(content):
            raise BadFrame("a frame that is shorter than its layouts")
        try:
            for number, tensors, requested in from_json(content[_HEAD.size : end]):
                if number != self._next:
                    raise BadFrame(f"layout {number} where {self._next} follows")
                described = tuple(
                    (str(name), str(datatype), tuple(map(int, shape))) for name, datatype, shape in tensors
                )
                self.layouts[number] = self._make(described, tuple(map(str, requested)))
                self._next += 1
        except (ValueError, TypeError) as error:
            raise BadFrame(f"layouts that cannot be read: {error}") from None
        return count, end + len(PADDING[size & 15])

    def find(self, number: int) -> Any:
        """Raises BadFrame for a layout that is not known."""
        found = self.layouts.get(number)
        if found is None:
            raise BadFrame(f"the unknown layout {number}")
        return found


class TooLarge(ValueError):
    """A record has more bytes than its frame has room for. Nothing of it was written."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"{size} bytes are more than a message can have beside what fits into the shared memory "
            "(--backend-config=python,shared-memory-byte-size)"
        )


class Records:
    """The records of one frame, as they are written. The caller holds the lock that orders the frames.

    A record is written whole or, if it raises, not at all.
    """

    __slots__ = ("_memory", "count", "numbers", "parts", "room")

    def __init__(self, numbers: SentLayouts, memory: SendingMemory) -> None:
        self._memory = memory
        self.numbers = numbers
        self.parts: list[Any] = []
        self.count = 0
        self.room = ROOM

    def add(
        self, number: int, layout: tuple[int, bool], contents: Sequence[Any], *, flags: int = 0, fields: bytes = b""
    ) -> None:
        """Add a record with these tensors, large ones in shared memory; `layout` is of `numbers`. Raises TooLarge."""
        layout_number, may_follow = layout
        lengths = [len(content) for content in contents]
        if may_follow and max(lengths, default=0) < LARGE:
            size = sum(lengths)
            self._take(RECORD.size + ((len(fields) + 15) & -16) + ((size + 15) & -16))
            parts = self.parts
            parts.append(RECORD.pack(number, layout_number, size, 0, len(fields), flags, 0))
            if fields:
                parts += (fields, PADDING[len(fields) & 15])
            parts += contents
            parts.append(PADDING[size & 15])
            return
        places: list[bytes] = []
        inside: list[Any] = []
        shared: list[int] = []
        at = 0
        try:
            for content, length in zip(contents, lengths):
                offset = self._memory.share(content) if length >= LARGE else None
                if offset is not None:
                    shared.append(offset)
                    places.append(PLACE.pack(offset | SHARED, length))
                    continue
                places.append(PLACE.pack(at, length))
                inside += (content, PADDING[length & 15])
                at += (length + 15) & -16
            self._take(RECORD.size + PLACE.size * len(places) + ((len(fields) + 15) & -16) + at)
        except BaseException:
            for offset in shared:
                self._memory.unshare(offset)
            raise
        self.parts += (
            RECORD.pack(number, layout_number, at, len(places), len(fields), flags, 0),
            *places,
            fields,
            PADDING[len(fields) & 15],
            *inside,
        )

    def add_tensors(
        self,
        number: int,
        tensors: tuple[Description, ...],
        contents: Sequence[Any],
        requested: tuple[str, ...] = (),
        *,
        flags: int = 0,
        fields: bytes = b"",
    ) -> None:
        """As `add`, for tensors of any layout. Raises ValueError, too."""
        key = (tensors, requested)
        layout = self.numbers.find(key) or self.numbers.add(key, tensors, requested)
        self.add(number, layout, contents, flags=flags, fields=fields)

    def add_failure(self, number: int, code: int, message: str, flags: int = 0) -> None:
        """Add a record of an error; `code` is one of TritonError's. A long message is cut, and says so."""
        text = message.encode("utf-8", "replace")
        if len(text) > _LONGEST_MESSAGE:
            text = text[:_LONGEST_MESSAGE] + b"... (%d bytes in all)" % len(text)
        self.count += 1
        self.parts += (RECORD.pack(number, code, 0, 0, len(text), flags | FAILED, 0), text, PADDING[len(text) & 15])

    def add_mark(self, number: int, flags: int) -> None:
        """Add a record without tensors that says only what its flags say."""
        self.count += 1
        self.parts.append(RECORD.pack(number, 0, 0, 0, 0, flags, 0))

    def frame(self, kind: int, number: int) -> bytes:
        """The frame. `numbers.sent` must follow once it is on its way."""
        return frame(kind, number, [self.numbers.head(self.count), *self.parts, _END.pack(number, _MARK)])

    def _take(self, size: int) -> None:
        if size > self.room:
            raise TooLarge(size)
        self.room -= size
        self.count += 1


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
    record.number, record.layout, size, places, text, record.flags, _ = RECORD.unpack_from(content, at)
    at += RECORD.size
    if places:
        end = at + places * PLACE.size
        if end > len(content):
            raise BadFrame("a record that is shorter than its places")
        record.places = tuple(PLACE.iter_unpack(content[at:end]))
        at = end
    else:
        record.places = ()
    record.text, record.fields = "", b""
    if text:
        end = at + text
        if record.flags & FAILED:
            record.text = str(content[at:end], "utf-8", "replace")
        else:
            record.fields = bytes(content[at:end])
        at = (end + 15) & -16
    end = at + size
    if end > len(content):
        raise BadFrame("a record that is shorter than its tensors")
    record.run = content[at:end]
    return record, (end + 15) & -16


def read_only_record(content: memoryview, at: int, number: int, count: int) -> Record:
    """The record at `at`, the only one of a frame with that number, which says that it has `count`. Raises BadFrame."""
    record, end = read_record(content, at)
    check_end(content, end, number)
    if count != 1 or record.number != number:
        raise BadFrame(f"{count} records, the first one of {record.number}, in a frame of {number}")
    return record


def check_end(content: memoryview, at: int, number: int) -> None:
    """Raise BadFrame unless the records of the frame `number` end at its end."""
    if at + _END.size != len(content) or _END.unpack_from(content, at) != (number, _MARK):
        raise BadFrame(f"records of {at} bytes in a frame of {len(content)}, which does not end as it should")


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
