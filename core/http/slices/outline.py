"""A JSON document without its long arrays, which are sliced.

In the text that is parsed as a whole each long array is replaced by a mark. The marks are then found in the parsed
document, where the arrays belong.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import orjson

from core.http.slices.json_array import STRICT, Fault, Judge, SlicedArray, slice_array
from core.http.slices.slicing import Slicing

# Nobody can send a mark without knowing this.
_SECRET = secrets.token_hex(16)
# How far the member of a long array may be from the start of the document, and from the array before it.
_NEAR = 1 << 16
# A document with more than this beside its long arrays, or with more arrays, is read as a whole.
_LARGEST = 1 << 20
_MOST_ARRAYS = 64


class Outline:
    """`document` is the parsed JSON with a mark in the place of each of the long `arrays`, which `take` exchanges.

    `text` is the text of the document. If that is no JSON behind the beginning of the last array, the document is None,
    and `behind` is what is wrong behind its end, None if the text ends within it.
    """

    def __init__(self, text: bytes, document: Any, arrays: list[SlicedArray], behind: Fault | None = None) -> None:
        self._behind = behind
        self.text = text
        self.document = document
        self.arrays = arrays
        self._untaken = dict(enumerate(arrays))

    def take(self, value: Any) -> SlicedArray | None:
        """The array whose mark `value` is; None for any other value, and for a mark that was taken before."""
        if type(value) is list and len(value) == 2 and value[0] == _SECRET:
            return self._untaken.pop(value[1], None)
        return None

    def is_taken(self) -> bool:
        """Whether all arrays were taken. If not, one is in a place where the reader expects no long array."""
        return not self._untaken

    def is_read(self) -> bool:
        """Whether all arrays were read, and so the whole text is valid JSON."""
        return all(array.is_read for array in self.arrays)

    def fault(self, judge: Judge = STRICT) -> Fault | None:
        """The first thing that is wrong with the text, whose arrays were read in their order; None if it is JSON, or if
        the slices do not tell. Behind the last array the strict parser judges."""
        for array in self.arrays:
            fault = None if array.is_read else array.fault(judge)
            if not array.is_read:
                return fault
        return self._behind


def outline_of(
    text: memoryview,
    member: re.Pattern[bytes],
    slicing: Slicing,
    *,
    whole_elements: bool,
    may_be_broken: bool = False,
) -> Outline | None:
    """The outline of the document `text`, whose long arrays are values of `member`, a pattern that ends with a bracket.

    None if it has no long array, if one cannot be sliced, or if the text is not JSON. `whole_elements` is
    that of `slice_array`. An array that fits into one slice is not long. `may_be_broken`: there is an outline,
    without a document, as well for a text that is no JSON behind the beginning of its last long array.
    """
    parts: list[bytes | memoryview] = []
    arrays: list[SlicedArray] = []
    copied = at = 0
    for _ in range(_MOST_ARRAYS):
        found = member.search(text, at, at + _NEAR)
        if found is None:
            break
        array = slice_array(text, found.end() - 1, slicing, whole_elements=whole_elements, may_be_cut=may_be_broken)
        if array is None:
            return None
        at = array.end
        if array.is_long:
            parts += (text[copied : array.begin], b'["%b",%d]' % (_SECRET.encode(), len(arrays)))
            arrays.append(array)
            copied = at
    parts.append(text[copied:])
    size = sum(map(len, parts))
    if not arrays or (size > _LARGEST and not may_be_broken):
        return None
    # What is wrong far from the end of a longer text is wrong in its beginning, too.
    parts[-1] = parts[-1][: max(_LARGEST - size + len(parts[-1]), 0)]
    outlined = b"".join(parts)
    try:
        document = orjson.loads(outlined)
        return Outline(outlined, document, arrays) if size <= _LARGEST else None
    except orjson.JSONDecodeError as error:
        if not may_be_broken or (size > _LARGEST and error.pos > len(outlined) - _NEAR):
            return None
        at = error.pos - (len(outlined) - len(parts[-1]))
        behind = None if arrays[-1].is_cut else Fault(error.msg.partition(":")[0], copied + at)
        return Outline(outlined, None, arrays, behind) if at >= 0 else None
