"""What a parser would say about the bytes of a long text, found slice by slice."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from core.http.slices.slicing import Slicing

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


def is_utf8(text: memoryview, slicing: Slicing) -> bool:
    """Whether the text is UTF-8, which strict parsers require before they look at anything else."""
    decoder = _utf8_decoder()
    is_within = False
    try:
        for at in range(0, len(text), slicing.size):
            slicing.pause()
            part = bytes(text[at : at + slicing.size])
            if is_within or not part.isascii():
                decoder.decode(part)
                is_within = bool(decoder.getstate()[0])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def is_ascii(text: memoryview, slicing: Slicing) -> bool:
    """Whether the text is ASCII, so that parsers that count characters count bytes."""
    for at in range(0, len(text), slicing.size):
        slicing.pause()
        if not bytes(text[at : at + slicing.size]).isascii():
            return False
    return True


def has_word(words: Sequence[bytes], text: memoryview, slicing: Slicing) -> bool:
    """Whether one of `words` is in the text."""
    longest = max(map(len, words))
    before = b""
    for at in range(0, len(text), slicing.size):
        slicing.pause()
        around = before + bytes(text[at : at + slicing.size])
        if any(word in around for word in words):
            return True
        before = around[-longest:]
    return False
