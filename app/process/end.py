"""How a process of the server ends: its exit status, and an end without finalisation."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

# A stop whose exit timeout ended before all requests in flight were answered.
EXIT_NOT_DRAINED = 1
# The site or the engine cannot serve, and a restart would not change that. Gunicorn's own codes are 3 and 4.
EXIT_FAILED = 5


def exit_now(code: int) -> NoReturn:
    """End this process without Python's finalisation, which waits for threads and may meet native ones at work."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
