"""The error of a long body of rows, found in its slices.

A decoder looks in all rows for one kind of error after the other, and compares rows with the first one. So the rows of
slices without an error do not matter to the error of the body: without them it is the same. Which of two slices has
it, the decoder says that reads the first row and both of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Protocol

from core.config.spec import ModelSpec
from core.errors import InvalidRequest
from core.http.long_json import joined_array
from core.http.payloads.payload import DecodedPayload, RowName, csv_row_name, instance_name, line_name, parse_json

_FRACTION = re.compile(rb"[0-9][.eE]")
_BLANK = re.compile(r"[\s]*")
_BREAK = b"\n"


class _NumberRows:
    """Rows of a model. Of integers, those that are written as fractions decide how all others are read."""

    def __init__(self, spec: ModelSpec) -> None:
        self._has_integers = any(expected.datatype.kind in "iu" for expected in spec.inputs.values())

    def is_plain(self, text: bytes) -> bool:
        return not self._has_integers or _FRACTION.search(text) is None


class JsonRows(_NumberRows):
    """Instances: a slice is an array of them."""

    def name(self, index: int) -> str:
        return instance_name(index)

    def count(self, text: bytes) -> int:
        try:
            return len(parse_json(text))
        except InvalidRequest:
            return 0

    def first(self, text: bytes) -> bytes:
        try:
            decoded = text.decode("utf-8", "surrogatepass")
            start = _BLANK.match(decoded, 1)
            _, end = json.JSONDecoder().raw_decode(decoded, start.end() if start else 1)
        except (ValueError, RecursionError):
            return b""
        return decoded[:end].encode("utf-8", "surrogatepass") + b"]"

    def join(self, texts: list[bytes]) -> bytes:
        return b"[" + b",".join([text[1:-1] for text in texts]) + b"]"


class LineRows(_NumberRows):
    """JSON Lines: a slice is some of them."""

    def name(self, index: int) -> str:
        return line_name(index)

    def count(self, text: bytes) -> int:
        return text.count(_BREAK) + bool(text[text.rfind(_BREAK) + 1 :].strip())

    def first(self, text: bytes) -> bytes:
        return text[: text.find(_BREAK) + 1] or text

    def join(self, texts: list[bytes]) -> bytes:
        return b"".join([text if text.endswith(_BREAK) else text + _BREAK for text in texts[:-1]]) + texts[-1]


class CsvRows(LineRows):
    """CSV: a slice is some of its lines, which are rows unless there are quotes, or other line breaks."""

    def name(self, index: int) -> str:
        return csv_row_name(index)

    def count(self, text: bytes) -> int:
        return text.count(_BREAK) + (not text.endswith(_BREAK))

    def is_plain(self, text: bytes) -> bool:
        return b'"' not in text and b"\r" not in text.replace(b"\r\n", b"") and super().is_plain(text)


# A decoder looks in all rows for one kind of error after the other, and compares rows with the first one. So the rows
# of slices without an error do not matter to the error of the body: without them it is the same. Which of two slices
# has it, the decoder says that reads the first row and both of them.


class Rows(Protocol):
    """How the rows of a format lie in the slices of a text."""

    def name(self, index: int) -> str:
        """The name of a row in errors."""

    def count(self, text: bytes) -> int:
        """The number of rows in a slice; 0 if that has none, or if the slice does not tell."""

    def first(self, text: bytes) -> bytes:
        """A slice with the first row alone; empty if the slice does not tell."""

    def join(self, texts: list[bytes]) -> bytes:
        """One slice with the rows of all."""

    def is_plain(self, text: bytes) -> bool:
        """Whether the rows of a slice mean the same beside any others."""


class _WrongSlice(NamedTuple):
    """A slice whose first row is row `start` of the body, and the error that the body would have without the others."""

    text: bytes
    start: int
    size: int
    error: InvalidRequest | None


class WrongRows:
    """The wrong slices of a body, of which one is kept. `decode` raises the error of a slice, whose rows have names."""

    def __init__(self, rows: Rows, first: bytes, decode: Callable[[bytes, RowName], object]) -> None:
        """`first` is a slice with the first row of the body alone."""
        self._rows = rows
        self._first = first
        self._decode = decode
        self._kept: _WrongSlice | None = None

    @property
    def error(self) -> InvalidRequest | None:
        """The error of the body, once all wrong slices were added."""
        return None if self._kept is None else self._kept.error

    def add(self, text: bytes, start: int, count: int) -> bool:
        """Add a slice of `count` rows. Returns whether it tells the error, together with those before it."""
        slice_ = _WrongSlice(text, start, count, None)
        slice_ = slice_._replace(error=self._error_of(slice_))
        kept = self._kept
        if kept is None or slice_.error is None:
            self._kept = slice_
            return slice_.error is not None
        both = self._error_of(kept, slice_)
        for one in (kept, slice_):
            if both is not None and one.error is not None and both.message == one.error.message:
                self._kept = one
                return True
        return False

    def _error_of(self, *slices: _WrongSlice) -> InvalidRequest | None:
        """The error of the body if it had no other rows than the first one and these."""
        texts = [one.text for one in slices]
        indices = [index for one in slices for index in range(one.start, one.start + one.size)]
        if slices[0].start:
            texts.insert(0, self._first)
            indices.insert(0, 0)

        def name(index: int) -> str:
            return self._rows.name(indices[index])

        try:
            self._decode(self._rows.join(texts), name)
        except InvalidRequest as error:
            return error
        return None


# Each slice is decoded as if it were the body. The slices give the payload of the whole body if they agree in
# everything that a decoder compares between the rows of one body. Otherwise `WrongRows` finds the error of the body.


# The payload of a slice, and the form of its rows, in which all rows of a body must agree; None: decode the whole body.
DecodedSlice = tuple[DecodedPayload, Hashable] | None
# Decodes a slice, whose rows have these names in errors. Raises InvalidRequest.
DecodeSlice = Callable[[bytes, RowName], DecodedSlice]


def decode_slices(texts: Iterable[bytes], rows: Rows, decode: DecodeSlice) -> DecodedPayload | None:
    """The joined payload; None if the whole body must be decoded, because the slices do not tell what is in it.

    Raises the InvalidRequest that the decoder of whole bodies would raise.
    """
    parts: list[DecodedPayload] = []
    wrong: WrongRows | None = None
    agreed: Hashable = None
    first_slice, first, count, is_plain = b"", b"", 0, True
    for text in texts:
        is_plain = is_plain and rows.is_plain(text)
        found = _decoded(text, rows, decode)
        if not first_slice:
            first_slice = text
            agreed = None if found is None else found[1]
        if found is not None and found[1] == agreed:
            parts.append(found[0])
            count += found[0].count or 0
            continue
        if wrong is None:
            first = rows.first(first_slice)
            wrong = WrongRows(rows, first, decode)
            if text is first_slice and first:
                # None: the first row, with which all have to agree, is wrong itself.
                row = _decoded(first, rows, decode)
                agreed = None if row is None else row[1]
        added = rows.count(text)
        if not (first and added and is_plain and wrong.add(text, count, added)):
            return None
        count += added
    if wrong is None:
        return _joined(parts) if parts else None
    if wrong.error is not None and is_plain:
        raise wrong.error
    return None


def _decoded(text: bytes, rows: Rows, decode: DecodeSlice) -> tuple[DecodedPayload, Hashable] | None:
    """The payload of a slice and what it must have in common with the others; None if it has an error."""
    try:
        decoded = decode(text, rows.name)
    except InvalidRequest:
        return None
    if decoded is None or decoded[0].rows is not None or decoded[0].count is None:
        return None
    return decoded[0], (*_form(decoded[0]), decoded[1])


def _form(payload: DecodedPayload) -> tuple[Hashable, ...]:
    shapes = tuple((name, array.shape[1:]) for name, array in payload.arrays.items())
    return shapes, payload.stacked


def _joined(parts: list[DecodedPayload]) -> DecodedPayload:
    first = parts[0]
    arrays = {name: joined_array([part.arrays[name] for part in parts]) for name in first.arrays}
    return DecodedPayload(arrays=arrays, count=sum(part.count or 0 for part in parts), stacked=first.stacked)
