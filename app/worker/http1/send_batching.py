"""Sending responses together, once per iteration of the hub's loop."""

from __future__ import annotations

from collections import deque
from typing import Any

from greenlet import getcurrent


class SendBatching:
    """Where greenlets wait with a response until all others of this iteration have made theirs. Hub thread only.

    A client that sleeps is woken by each response that it gets, which is most of what the kernel does to send one; and
    between two responses it does sleep, if they are made one by one. Sent one right after the other they find it awake
    (64 connections of one `wrk`: 14 % less CPU per request, 15 % more requests/s).
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
        except BaseException:  # it was killed, and must not be woken from whatever it does next
            self._waiting.remove(greenlet)
            raise

    def _go(self) -> None:
        """Those who are here now; who comes meanwhile waits for the next turn."""
        for _ in range(len(self._waiting)):
            if self._waiting:
                self._waiting.popleft().switch()
        if self._waiting:
            self._hub.loop.run_callback(self._go)
