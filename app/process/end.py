"""How a process of the server ends: its exit status, and an end without finalisation."""

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


def exit_now(code: int) -> NoReturn:
    """End this process without Python's finalisation, which waits for threads and may meet native ones at work."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# A stop signal may come before the server has begun. Without a handler it is lost in a container, where the kernel
# delivers to the first process only what that handles: `docker stop` would wait for its time-out and kill. And for
# SIGINT Python would print the traceback of an import.


# What timers and other programs' conventions send. The server gives a meaning to SIGUSR1 and SIGUSR2 when it begins.
_STRAY = (
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGSTKFLT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def end_at_stop_signals() -> None:
    """End the process at once, as after a stop, until others handle SIGTERM and SIGINT. The main thread only."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def pass_over_stray_signals() -> None:
    """Keep the signals that mean nothing to a server from ending it, here and in what is forked. The main thread only.

    They have a handler, because ignored ones would stay ignored in the programs that models start.
    """
    for number in _STRAY:
        signal.signal(number, lambda *_: None)


def _end(number: int, frame: object) -> None:
    # No exception: one that is raised in the middle of an import may be taken for a failure of it, or be swallowed.
    os._exit(0)
