"""The times of an answer as the header `Server-Timing`, which browsers and tracing tools show.

Source: https://www.w3.org/TR/server-timing/ section "The Server-Timing Header Field": `name;dur=milliseconds`, and a
description in quotes.
"""

from __future__ import annotations

from core.inference.times import InferenceTimes

SERVER_TIMING = "Server-Timing"
_TEXT = (
    "queue;dur=%.3f, compute_input;dur=%.3f, compute_infer;dur=%.3f, compute_output;dur=%.3f, "  # milliseconds
    'batch;desc="%d"'
)
_NS = 1_000_000


def server_timing(times: InferenceTimes) -> str:
    """The value of the header."""
    queue, gather, infer, split, batch_size, close_reason = times
    text = _TEXT % (queue / _NS, gather / _NS, infer / _NS, split / _NS, batch_size)
    return text if close_reason is None else f'{text}, close;desc="{close_reason.label}"'
