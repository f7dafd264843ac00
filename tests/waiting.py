"""Waiting for a condition that another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

LIMIT_S = 60.0
_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02

# A process of the server writes the lines of its log together, those of 50 ms at a time.
_QUIET_S = 0.3
_QUIET_LIMIT_S = 5.0

T = TypeVar("T")


def until(
    condition: Callable[[], T],
    what: str | Callable[[], str] = "waited in vain",
    *,
    limit_s: float = LIMIT_S,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Wait until `condition()` is true, and return its value. AssertionError with `what` after the limit.

    The pauses between two calls grow from 1 to 20 ms. On a gevent hub `sleep` must be gevent's.
    """
    deadline, pause_s = time.monotonic() + limit_s, _PAUSE_S
    while not (found := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(what if isinstance(what, str) else what())
        sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return found


def quiet_text(log: Path) -> str:
    """The text of a server's log when nothing was added for a while, so that it tells what has happened so far.

    A log that never rests is returned as it is after a limit.
    """
    deadline, changed, size = time.monotonic() + _QUIET_LIMIT_S, time.monotonic(), -1
    while (now := time.monotonic()) - changed < _QUIET_S and now < deadline:
        if (grown := log.stat().st_size) != size:
            size, changed = grown, now
        time.sleep(_LONGEST_PAUSE_S)
    return log.read_text(errors="replace")
