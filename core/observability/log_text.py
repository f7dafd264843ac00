"""Text that goes into a log or a table: nothing in it can look like another line, or steer a terminal."""

from __future__ import annotations

import json
import re

# Control characters of both kinds (C1 holds an escape for terminals), what some readers take for line ends, what turns
# the direction of text around, and lone surrogates, which cannot be encoded.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """`text` on one line, each unsafe character as a JSON escape."""
    return _UNSAFE.sub(_escape, text)


def quoted(text: str) -> str:
    """`text` as a JSON string literal on one line; other than control characters, it stays readable in any script."""
    return escaped(json.dumps(text, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f"
