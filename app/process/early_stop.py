"""A stop signal that comes before the server has begun, while its modules are imported.

Without a handler it is lost in a container, where the kernel delivers to the first process only what that handles:
`docker stop` would wait for its time-out and kill. And for SIGINT Python would print the traceback of an import.
"""

from __future__ import annotations

import os
import signal


def end_at_stop_signals() -> None:
    """End the process at once, as after a stop, until others handle SIGTERM and SIGINT. The main thread only."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    # No exception: one that is raised in the middle of an import may be taken for a failure of it, or be swallowed.
    os._exit(0)
