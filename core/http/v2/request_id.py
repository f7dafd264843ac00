"""The id in the JSON of a request, apart from the rest of it: the id differs each time, the rest seldom does.

Source: docs/spec/http.md section 4 (`id`).
"""

from __future__ import annotations

import re

# A quotation mark cannot stand inside of a string but behind a backslash, so what this finds is a member of that name.
_ID = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"')


def without_id(text: bytes) -> tuple[bytes, str]:
    """`text` with an empty id, and the id; as it is and "" where there is none that can be told at a look.

    Whether what was found is the request's, and not some other member's of that name, only a parser can say.
    """
    if b'"id"' not in text:
        return text, ""
    found = _ID.search(text)
    if found is None:
        return text, ""
    start, end = found.span(1)
    try:
        return text[:start] + text[end:], text[start:end].decode()
    except UnicodeDecodeError:
        return text, ""


def is_id_of(text: bytes, found: str, request_id: str) -> bool:
    """Whether what `without_id` found in `text` is the id that a parser read, here and in all texts that differ by it
    alone: then no other member has that name, not even one that is written with escapes."""
    if found != request_id:
        return False
    return not found or (text.count(b'"id"') == 1 and b"\\" not in text)
