"""A JSON document with long arrays, written slice by slice."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

from core.inference.tensors import Array

# Elements of a slice: numbers of this count are written in one to two milliseconds.
ELEMENTS = 1 << 14

_MARK = secrets.token_hex(16)
_MARK_TEXT = b'"%b"' % _MARK.encode()


class LongAnswer:
    """Arrays that are written slice by slice into one document, in which `add` puts marks for them, in order."""

    def __init__(self) -> None:
        self._arrays: list[tuple[Array, Callable[[Array], Any]]] = []

    def add(self, array: Array, values: Callable[[Array], Any]) -> str:
        """The mark for a flat array. `values` makes what a JSON writer takes, an array or a list, of a part of it."""
        self._arrays.append((array, values))
        return _MARK

    def texts(self, document: Any, write: Callable[[Any], bytes]) -> Iterator[bytes | memoryview]:
        """The text of `document` in parts, as `write` would write it with the arrays in the place of their marks.

        Raises what `write` raises. The document has the marks in the order of `add`. The parts of an array are views
        of what was written, which is not copied again.
        """
        around = write(document).split(_MARK_TEXT)
        yield around[0]
        for (array, values), after in zip(self._arrays, around[1:], strict=True):
            yield b"["
            for start in range(0, len(array), ELEMENTS):
                if start:
                    yield b","
                yield memoryview(write(values(array[start : start + ELEMENTS])))[1:-1]
            yield b"]" + after
