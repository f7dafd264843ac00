"""Signals that ask a process to stop, while it is being forked.

A child begins with the handlers of its parent: until it has its own, a signal would end in its copy of the parent's
queue, where nobody looks, and the child would be waited for until it is killed.
"""

from __future__ import annotations

import signal

# How the main process stops the engine. Not SIGTERM: systemd, dumb-init and others send that to all processes at once,
# and the engine must outlast the front ends, which have requests in flight.
STOP_ENGINE = signal.SIGRTMIN
_STOP = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, STOP_ENGINE))


def hold_stop_signals() -> None:
    """Keep them waiting, in this thread and in what is forked from it, until `release_stop_signals` in either."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)


def release_stop_signals() -> None:
    """Let those through that came meanwhile, and all that come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
