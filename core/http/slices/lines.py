"""A long text of lines in slices of whole lines."""

from __future__ import annotations

from collections.abc import Iterator

from core.http.slices.slicing import Slicing

_BREAK = b"\n"


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
