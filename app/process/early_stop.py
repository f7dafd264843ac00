"""Signals of the whole process, from before its modules are imported.

A stop signal may come before the server has begun. Without a handler it is lost in a container, where the kernel
delivers to the first process only what that handles: `docker stop` would wait for its time-out and kill. And for SIGINT
Python would print the traceback of an import.
"""

from __future__ import annotations

import os
import signal

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
