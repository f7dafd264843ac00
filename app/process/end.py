"""How a process of the server ends: its exit status, the words for it in the log, and an end without finalisation."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import NoReturn

# A stop whose exit timeout ended before all requests in flight were answered.
EXIT_NOT_DRAINED = 1
# The site or the engine cannot serve, and a restart would not change that. Gunicorn's own codes are 3 and 4.
EXIT_FAILED = 5


def end_text(code: int) -> str:
    """How a process ended, for the log: `code` is its exit status, or the negative number of a signal."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal: most of them have no name
        return f"was ended by signal {-code}"


def exit_now(code: int) -> NoReturn:
    """End this process without Python's finalisation, which waits for threads and may meet native ones at work."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
