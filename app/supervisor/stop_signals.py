"""Holds back the signals that a process must not miss while it is being forked: the stop, and the log file's change.

A child starts with its parent's signal handlers. Until it has installed its own, a signal would be put into its copy of
the parent's queue, which nobody reads, and the parent would wait for the child until it kills it.
"""

from __future__ import annotations

import signal

# The main process stops the engine with this signal. Not with SIGTERM, which systemd, dumb-init and others send to all
# processes at once: the engine must outlive the front ends, which have requests in flight.
STOP_ENGINE = signal.SIGRTMIN
_HELD = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, STOP_ENGINE))


def hold_stop_signals() -> None:
    """Block the stop signals in this thread and its forked children, until each calls `release_stop_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_stop_signals() -> None:
    """Deliver the blocked stop signals, and all later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
