"""Sends responses together, once per iteration of the hub's loop."""

from __future__ import annotations

from collections import deque
from typing import Any

from greenlet import getcurrent


class SendBatching:
    """Holds greenlets with a finished response until all others of this iteration have theirs. Hub thread only.

    A send wakes a client that sleeps, and that is most of what the send costs the kernel. A client of many connections
    sleeps between responses that are sent one by one, and stays awake when they are sent together (64 connections of
    one `wrk`: 14 % less CPU per request, 15 % more requests/s).
    """

    __slots__ = ("_hub", "_waiting")

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._waiting: deque[Any] = deque()

    def wait(self) -> None:
        """Return when it is time to send."""
        greenlet = getcurrent()
        if not self._waiting:
            self._hub.loop.run_callback(self._go)
        self._waiting.append(greenlet)
        try:
            self._hub.switch()
        except BaseException:  # the greenlet was killed: `_go` must not wake it from another wait
            self._waiting.remove(greenlet)
            raise

    def _go(self) -> None:
        """Wake the greenlets that wait now; those that arrive meanwhile wait for the next iteration."""
        for _ in range(len(self._waiting)):
            if self._waiting:
                self._waiting.popleft().switch()
        if self._waiting:
            self._hub.loop.run_callback(self._go)
