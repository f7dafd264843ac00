"""Waiting for other threads, and the deadlines of a hub.

A native thread waits here, a greenlet on the hub in core/frontend/gevent_bridge.py.
Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

import heapq
import time
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from trident.core.borders import guarded

T = TypeVar("T")


class Mailbox(Protocol[T]):
    """Items for one caller, the oldest first. None is not an item."""

    def put(self, item: T) -> None:
        """Add an item. Any thread, also in a finalizer."""

    def get(self, timeout_s: float | None = None) -> T | None:
        """Wait for an item; None after `timeout_s` seconds without one, None waits without limit.

        Only where the mailbox was made, by one caller at a time.
        """

    def take(self) -> T | None:
        """Return an item that has arrived; None without one."""


class ThreadMailbox(Mailbox[T]):
    """The caller is a native thread."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()

    def put(self, item: T) -> None:
        self._items.put(item)

    def get(self, timeout_s: float | None = None) -> T | None:
        try:
            return self._items.get(timeout=timeout_s)
        except Empty:
            return None

    def take(self) -> T | None:
        try:
            return self._items.get_nowait()
        except Empty:
            return None


TICK_S = 0.02
_NEAR_S = 0.1


class Expiring(Protocol):
    """An object with a deadline. It must be hashable."""

    def expire(self) -> None:
        """Called on the hub at the deadline. Exceptions are logged."""


class Deadlines:
    """The deadlines of a hub: one timer for all, which runs only while there are some. On the hub's thread.

    Time is cut into ticks, and deadlines within the same tick are grouped, so that adding and removing takes as long
    with 100,000 deadlines as with one. Nothing expires too early, and at most 20 ms too late.
    """

    def __init__(self, hub: Any) -> None:
        self._loop = hub.loop
        self._ticks: dict[int, dict[Expiring, None]] = {}
        self._order: list[int] = []
        self._timer: Any = None
        self._next = 0

    def add(self, seconds: float, expiring: Expiring) -> int:
        """Have `expiring.expire()` called after `seconds`. Returns the tick to pass to `remove`."""
        tick = int((time.monotonic() + max(0.0, seconds)) / TICK_S) + 1
        together = self._ticks.get(tick)
        if together is None:
            together = self._ticks[tick] = {}
            heapq.heappush(self._order, tick)
            if self._timer is None or tick < self._next:
                self._wait_for(tick)
        together[expiring] = None
        return tick

    def remove(self, tick: int, expiring: Expiring) -> None:
        together = self._ticks.get(tick)
        if together is not None:
            together.pop(expiring, None)

    def is_near(self, tick: int) -> bool:
        """Return True if `tick` is about to expire: the other end, with the same deadline, may act first."""
        return tick * TICK_S - time.monotonic() < _NEAR_S

    def close(self) -> None:
        """Stop the timer: nothing expires from now on."""
        self._stop()
        self._ticks.clear()
        self._order.clear()

    def _wait_for(self, tick: int) -> None:
        self._stop()
        self._next = tick
        self._timer = self._loop.timer(max(0.0, tick * TICK_S - time.monotonic()))
        self._timer.start(self._look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def _look(self) -> None:
        now = int(time.monotonic() / TICK_S)
        while self._order and (self._order[0] <= now or not self._ticks[self._order[0]]):
            # The tick stays in the table meanwhile: an object that expires may remove another.
            together = self._ticks[self._order[0]]
            while together:
                expiring = next(iter(together))
                del together[expiring]
                guarded(expiring.expire, "a deadline")
            del self._ticks[heapq.heappop(self._order)]
        if self._order:
            self._wait_for(self._order[0])
        else:
            self._stop()
