"""Escapes text for a log or a table, so that it cannot look like another line or control a terminal."""

from __future__ import annotations

import json
import re

# Control characters (C0, and C1 with its terminal escape), Unicode line separators, characters that reverse the
# direction of text, and lone surrogates, which cannot be encoded.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """`text` on one line, with each unsafe character as a JSON escape."""
    return _UNSAFE.sub(_escape, text)


def quoted(text: str) -> str:
    """`text` as a JSON string literal on one line. Letters of every script stay readable."""
    return escaped(json.dumps(text, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f"
