"""Waiting for a condition that another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 60.0
_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02

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
