"""Items that any thread brings to one greenlet."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from core.waiting.greenlet_waiter import HubWaiters
from core.waiting.mailbox import Mailbox

T = TypeVar("T")


class GreenletMailbox(Mailbox[T]):
    """The caller is a greenlet of the hub. Items that arrive before it looks wake it once.

    Only the hub's thread touches `greenlet`, which is None while nobody waits.
    """

    __slots__ = ("_is_told", "_waiters", "greenlet", "items")

    def __init__(self, waiters: HubWaiters) -> None:
        self._waiters = waiters
        self._is_told = False
        self.greenlet: Any = None
        self.items: deque[T] = deque()

    def put(self, item: T) -> None:
        self.items.append(item)
        # The caller clears the flag before it looks at the items: it either sees this one or is told of it.
        if not self._is_told:
            self._is_told = True
            self._waiters.wake(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        self._is_told = False
        if self.items:
            return True
        hub = self._waiters.hub
        timer = None
        self.greenlet = self._waiters.current()
        try:
            if timeout_s is not None:
                timer = hub.loop.timer(timeout_s)
                timer.start(self.greenlet.switch)
            while not self.items and (timer is None or timer.active):
                self._is_told = False
                if self.items:
                    break
                hub.switch()
        finally:
            self.greenlet = None
            if timer is not None:
                timer.stop()
                timer.close()
        return bool(self.items)
