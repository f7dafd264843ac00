"""The error of a long body of rows, found in its slices.

A decoder looks in all rows for one kind of error after the other, and compares rows with the first one. So the rows of
slices without an error do not matter to the error of the body: without them it is the same. Which of two slices has
it, the decoder says that reads the first row and both of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from core.errors import InvalidRequest
from core.http.payloads.error_location import RowName


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
