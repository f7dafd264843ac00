"""Holds back the signals that a process must not miss while it is being forked: the stop, and the log file's change.

A child starts with its parent's signal handlers. Until it has installed its own, a signal would be put into its copy of
the parent's queue, which nobody reads, and the parent would wait for the child until it kills it.

A child that starts threads before it has its handlers notes the signals instead. Threads keep the signals blocked that
were blocked when they began, and so do the processes that they start, which nobody could then end with SIGTERM.
"""

from __future__ import annotations

import os
import signal

# The main process stops the engine with this signal. Not with SIGTERM, which systemd, dumb-init and others send to all
# processes at once: the engine must outlive the front ends, which have requests in flight.
STOP_ENGINE = signal.SIGRTMIN
_noted: list[int] = []
_HELD = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, STOP_ENGINE))


def hold_stop_signals() -> None:
    """Block the stop signals in this thread and its forked children, until each calls `release_stop_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_stop_signals() -> None:
    """Deliver the blocked stop signals, and all later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def note_stop_signals() -> None:
    """In a new worker: from now on the stop signals, also those that were held back, wait for `send_noted_signals`."""
    for number in _HELD - {STOP_ENGINE}:
        signal.signal(number, lambda number, frame: _noted.append(number))
    release_stop_signals()


def send_noted_signals() -> None:
    """Send this process the signals that it has noted. Call it when it has its own handlers."""
    while _noted:
        os.kill(os.getpid(), _noted.pop(0))
