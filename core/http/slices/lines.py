"""A long text of lines in slices of whole lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from core.http.slices.slicing import Slicing

_BREAK = b"\n"
_BLANK = re.compile(rb"\n[ \t\r]*\n").search


def line_slices(text: memoryview, slicing: Slicing) -> Iterator[bytes]:
    """The slices, of which all but the last end with a line break (LF)."""
    at, size = 0, slicing.size
    while at < len(text):
        slicing.pause()
        part = bytes(text[at : at + size])
        end = part.rfind(_BREAK) + 1
        while not end and at + len(part) < len(text):
            more = bytes(text[at + len(part) : at + len(part) + size])
            end = len(part) + more.find(_BREAK) + 1 if _BREAK in more else 0
            part += more
        yield part[: end or len(part)]
        at += end or len(part)


def without_blank_lines(text: bytes) -> bytes:
    """`text` without lines that have nothing but blanks, which people leave between and after rows."""
    if _BLANK(text) is None and not text[:1].isspace() and not text[-2:].isspace():
        return text
    return _BREAK.join([line for line in text.split(_BREAK) if line and not line.isspace()])
