"""How a caller waits for an outcome or for items from another thread, and the deadlines of a hub.

A native thread waits on a lock here, a greenlet on the hub in core/frontend/gevent_bridge.py.
Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from typing import Any, Protocol, TypeVar

from trident.core.borders import guarded


class Waiter(Protocol):
    """`outcome` is None until `settle`."""

    outcome: Any

    def settle(self, outcome: object) -> None:
        """Give the caller its outcome, which is not None. Called once, on any thread, possibly before `wait`."""

    def wait(self, timeout_s: float | None = None) -> Any:
        """Return the outcome, or None if it did not arrive within `timeout_s` seconds. None waits without limit.

        Called where the waiter was made. An outcome that arrives after the last call wakes nobody.
        """


class ThreadWaiter:
    """The native thread that calls `wait`."""

    __slots__ = ("_settled", "outcome")

    def __init__(self) -> None:
        self.outcome: Any = None
        self._settled = threading.Lock()
        self._settled.acquire()

    def settle(self, outcome: object) -> None:
        self.outcome = outcome
        self._settled.release()

    def wait(self, timeout_s: float | None = None) -> Any:
        if self.outcome is None and self._settled.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._settled.release()
        return self.outcome


T = TypeVar("T")


class Mailbox(Protocol[T]):
    """`items` are those that have arrived, the oldest first; the caller removes them."""

    items: deque[T]

    def put(self, item: T) -> None:
        """Add an item. Any thread."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether there are items, after `timeout_s` seconds at most; None waits without limit.

        Only where the mailbox was made, by one caller at a time.
        """


class ThreadMailbox(Mailbox[T]):
    """The caller is a native thread."""

    __slots__ = ("_arrived", "items")

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._arrived = threading.Condition(threading.Lock())

    def put(self, item: T) -> None:
        with self._arrived:
            self.items.append(item)
            self._arrived.notify()

    def wait(self, timeout_s: float | None = None) -> bool:
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self.items), timeout_s)


TICK_S = 0.02
_NEAR_S = 0.1


class Expiring(Protocol):
    """It must be hashable."""

    def expire(self) -> None:
        """Its time has come. Called on the hub. What it raises is logged."""


class Deadlines:
    """The deadlines of a hub: one timer for all, which runs only while there are some. On the hub's thread.

    Time is cut into ticks, and whatever expires within the same one is kept together, so that adding and removing takes
    as long with 100,000 deadlines as with one. Nothing expires too early, and at most 20 ms too late.
    """

    def __init__(self, hub: Any) -> None:
        self._loop = hub.loop
        self._ticks: dict[int, dict[Expiring, None]] = {}
        self._order: list[int] = []
        self._timer: Any = None
        self._next = 0

    def add(self, seconds: float, expiring: Expiring) -> int:
        """Have `expiring.expire()` called after `seconds`. Returns the tick, which `remove` wants."""
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
        """Do not expire it. Does nothing if it has expired."""
        together = self._ticks.get(tick)
        if together is not None:
            together.pop(expiring, None)

    def is_near(self, tick: int) -> bool:
        """Whether what expires at `tick` does so in a moment: the other end, with the same deadline, may be first."""
        return tick * TICK_S - time.monotonic() < _NEAR_S

    def close(self) -> None:
        """Nothing expires from now on."""
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
            # It stays findable meanwhile: one that expires may remove another.
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
