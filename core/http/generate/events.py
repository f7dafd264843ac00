"""Server-Sent Events, one for each response.

Source: docs/spec/http.md section 9; https://html.spec.whatwg.org/multipage/server-sent-events.html, "Event stream".
"""

from __future__ import annotations

from typing import Final

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


def event(text: bytes) -> bytes:
    """The event with `text`, which has no line break."""
    return b"data: %b\n\n" % text
