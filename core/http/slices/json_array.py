"""A long JSON array in slices, each of which is a JSON array itself.

The array is cut at commas outside strings. The brackets that are open there are closed at the end of the one slice and
opened again at the start of the next. If each slice is valid JSON, so is the whole array, with the same elements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import orjson

from core.http.slices.slicing import Slicing
from core.inference.tensors import Array

# An element that is longer than so many slices makes an array that cannot be sliced between its elements.
_LONGEST = 16
# The part of a slice in which the last comma is looked for first.
_TAIL = 1 << 12
# The parsers stop at 1024, and a request may have 100.
_DEEPEST = 64

_OPENING, _CLOSING = b"[{", b"]}"
_STRUCTURE = b'"' + _OPENING + _CLOSING
_NO_STRUCTURE = bytes(code for code in range(256) if code not in _STRUCTURE)
_STEPS = np.zeros(256, np.int32)
_STEPS[list(_OPENING)] = 1
_STEPS[list(_CLOSING)] = -1
_QUOTE, _COMMA = ord('"'), ord(",")


class _Slice(NamedTuple):
    """The first byte and the end of a part of the text, and the number of arrays that are open there.

    None is closed at the end of a text that ends within the array.
    """

    begin: int
    end: int
    opened: int
    closed: int


class Fault(NamedTuple):
    """Why a text is no JSON: the parser's reason, and the offset at which it stops, as it counts."""

    reason: str
    offset: int


class Judge(NamedTuple):
    """A parser that says what is not JSON. `load` raises json.JSONDecodeError, `size` is the size of a text in that."""

    load: Callable[[bytes], object]
    size: Callable[[bytes], int]


STRICT = Judge(orjson.loads, len)


class SlicedArray:
    """The array from the bracket at `begin` to the one before `end`.

    `is_read`: all slices were read, and nothing was wrong with them. `is_cut`: the text ends within the array.
    """

    __slots__ = ("_count", "_pause", "_slices", "_text", "begin", "end", "is_cut", "is_read")

    def __init__(self, text: memoryview, begin: int, end: int, slices: list[_Slice], slicing: Slicing) -> None:
        self.begin = begin
        self.end = end
        self.is_read = False
        self.is_cut = not slices[-1].closed
        self._text = text
        self._slices = slices
        self._pause = slicing.pause
        self._count = 0  # those that were given out

    @property
    def is_long(self) -> bool:
        """Whether there is more than one slice."""
        return len(self._slices) > 1

    def texts(self) -> Iterator[bytes]:
        """The slices, each the text of an array, as long as the caller finds nothing wrong with them."""
        for count, one in enumerate(self._slices, 1):
            self._pause()
            self._count = count
            yield self._text_of(one)
        self.is_read = True

    def fault(self, judge: Judge = STRICT) -> Fault | None:
        """What is wrong with the first slice that is no JSON, of those from the last one on that was given out.

        None if all are JSON, which makes the array one that was read, or if the slice does not tell: it is wrong where
        the text goes on, or nested too deep.
        """
        for one in self._slices[max(self._count - 1, 0) :]:
            self._pause()
            try:
                judge.load(self._text_of(one))
            except json.JSONDecodeError as error:
                reason, at = error.msg.partition(":")[0], error.pos - one.opened
                is_inside = 0 <= at < judge.size(self._content_of(one)) + (not one.closed)
                is_known = is_inside and "depth limit" not in reason
                return Fault(reason, self._offset(one, judge) + at) if is_known else None
            except RecursionError:
                return None
        self.is_read = True
        return None

    def _offset(self, wanted: _Slice, judge: Judge) -> int:
        """The offset of a slice, as the judge counts."""
        if judge is STRICT:
            return wanted.begin
        at = 0
        offset = 0
        for one in self._slices:
            self._pause()
            # What is before the slice, as far as it is not counted yet: the comma, or the text before the array.
            offset += judge.size(bytes(self._text[at : one.begin]))
            if one is wanted:
                break
            offset += judge.size(self._content_of(one))
            at = one.end
        return offset

    def _content_of(self, one: _Slice) -> bytes:
        return bytes(self._text[one.begin : one.end])

    def _text_of(self, one: _Slice) -> bytes:
        return b"[" * one.opened + self._content_of(one) + b"]" * one.closed


def slice_array(
    text: memoryview, begin: int, slicing: Slicing, *, whole_elements: bool, may_be_cut: bool = False
) -> SlicedArray | None:
    """The array whose bracket is at `begin`, in slices; None if it cannot be sliced.

    `whole_elements`: only between the array's own elements; otherwise elements that are arrays may be cut, too. Any
    text is taken, JSON or not: what is wrong is found in the slices, or makes the array one that cannot be sliced.
    `may_be_cut`: so is an array in which the text ends, and one that ends with the wrong bracket.
    """
    slices: list[_Slice] = []
    at, depth, window = begin + 1, 1, slicing.size
    while True:
        slicing.pause()
        part = bytes(text[at : at + window])
        end = _end_of_array(part, depth)
        if end is not None:
            if part[end : end + 1] != b"]":
                if not may_be_cut:
                    return None
                slices.append(_Slice(at, at + end + 1, depth, 0))
                break
            slices.append(_Slice(at, at + end, depth, 1))
            break
        found = _last_comma(part, depth, 1 if whole_elements else _DEEPEST)
        if found is not None:
            cut, closed = found
            slices.append(_Slice(at, at + cut, depth, closed))
            at, depth, window = at + cut + 1, closed, slicing.size
        elif at + window < len(text) and window < _LONGEST * slicing.size:
            window *= 2
        elif may_be_cut and at + window >= len(text):
            end = len(text) - at - 1
            slices.append(_Slice(at, len(text), depth, 0))
            break
        else:
            return None
    if len(slices) > 1 and not _is_joined(text, slices):
        return None
    return SlicedArray(text, begin, at + end + 1, slices, slicing)


def _is_joined(text: memoryview, slices: list[_Slice]) -> bool:
    """Whether each comma between two slices follows an element and precedes one."""
    for before, after in pairwise(slices):
        last = _edge(text, before.end - 1, before.begin - 1, -1)
        first = _edge(text, after.begin, after.end, 1)
        ends_there = not after.closed and not bytes(text[after.begin : after.end]).strip()
        if last in b"[," or (first in b"]," and not ends_there):
            return False
    return True


def _edge(text: memoryview, at: int, limit: int, step: int) -> bytes:
    """The first byte that is no white space, "," if there is none."""
    while at != limit:
        byte = bytes(text[at : at + 1])
        if not byte.isspace():
            return byte
        at += step
    return b","


def _end_of_array(part: bytes, depth: int) -> int | None:
    """The position of the bracket that closes the outermost of `depth` open ones; None if it is not in the part."""
    brackets = _brackets(_without_escapes(part))
    if depth + _lowest(brackets) > 0:
        return None
    at, kinds = _marks(part)
    (ends,) = np.nonzero(depth + np.cumsum(_STEPS[kinds]) == 0)
    return int(at[ends[0]])


def _last_comma(part: bytes, depth: int, deepest: int) -> tuple[int, int] | None:
    """The position of the last comma outside strings and the number of brackets open there, at most `deepest`."""
    tail = min(_TAIL, len(part))
    while True:
        start = len(part) - tail
        # A tail must not begin within an escape.
        while start and part[start - 1 : start] == b"\\":
            start -= 1
        inside, open_here = _state(part[:start], depth)
        at, kinds = _marks(part[start:], inside=inside)
        open_at = open_here + np.cumsum(_STEPS[kinds])
        (commas,) = np.nonzero((kinds == _COMMA) & (open_at <= deepest))
        if commas.size:
            last = commas[-1]
            return start + int(at[last]), int(open_at[last])
        if not start:
            return None
        tail = min(8 * tail, len(part))


def _state(text: bytes, depth: int) -> tuple[bool, int]:
    """Whether `text` ends inside a string, and the number of brackets that are then open."""
    plain = _without_escapes(text)
    brackets = _brackets(plain)
    opened = sum(map(brackets.count, (b"[", b"{")))
    return plain.count(b'"') % 2 == 1, depth + 2 * opened - len(brackets)


def _without_escapes(text: bytes) -> bytes:
    """`text` without the escapes in its strings that could be taken for the end of a string."""
    if b"\\" in text:
        return text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text


def _brackets(plain: bytes) -> bytes:
    """All brackets outside strings."""
    structure = plain.translate(None, _NO_STRUCTURE)
    if b'"' not in structure:
        return structure
    if structure.count(b'"') == len(structure):
        return b""
    return b"".join(structure.split(b'"')[::2])


def _lowest(brackets: bytes) -> int:
    """How far the number of open brackets falls at most; 0 if it does not."""
    if b"]" not in brackets and b"}" not in brackets:
        return 0
    return int(np.cumsum(_STEPS[np.frombuffer(brackets, np.uint8)]).min())


def _marks(text: bytes, *, inside: bool = False) -> tuple[Array, Array]:
    """The positions and the codes of all brackets and commas outside strings; `inside`: it begins inside one."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    codes = np.frombuffer(text, np.uint8)
    (at,) = np.nonzero(_MARKS[codes])
    kinds = codes[at]
    quotes = kinds == _QUOTE
    outside = (np.cumsum(quotes) + inside) % 2 == 0
    keep = outside & ~quotes
    return at[keep], kinds[keep]


_MARKS = np.zeros(256, np.bool_)
_MARKS[list(_STRUCTURE + b",")] = True
