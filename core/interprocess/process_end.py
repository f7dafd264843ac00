"""How a process ended, in words."""

from __future__ import annotations

import signal


def end_text(code: int) -> str:
    """How a process ended, for the log: `code` is its exit status, or the negative number of a signal."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal: most of them have no name
        return f"was ended by signal {-code}"
