"""The server's threads that run in a test's own process."""

from __future__ import annotations

import threading

_earlier: set[threading.Thread] = set()


def server_threads() -> list[str]:
    """Names of the server's running threads, without those of other modules' tests."""
    return [thread.name for thread in _running() if thread not in _earlier]


def forget_server_threads() -> None:
    """Leave out the threads that run now, so that only the tests that left them fail."""
    _earlier.clear()
    _earlier.update(_running())


def _running() -> list[threading.Thread]:
    # The writer of the log is the process's: it starts with a line, whichever test that comes from.
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("trident-") and thread.name != "trident-log"
    ]
