"""W3C Trace Context, by which a program tells another one to which trace a request belongs.

Source: https://www.w3.org/TR/trace-context/ sections 3.2 and 3.3.
"""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_FORBIDDEN_VERSION = "ff"
_LONGEST = 512


def parse_traceparent(text: str) -> tuple[int, int] | None:
    """The trace and the span that a traceparent names; None if it is not valid."""
    found = _TRACEPARENT.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if found is None or found[1] == _FORBIDDEN_VERSION or (found[1] == "00" and found[5]):
        return None
    trace, span = int(found[2], 16), int(found[3], 16)
    return (trace, span) if trace and span else None


def traceparent_of(trace: int, span: int) -> str:
    """The traceparent of a span that is sampled."""
    return f"00-{trace:032x}-{span:016x}-01"
