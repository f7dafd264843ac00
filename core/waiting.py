"""How a caller waits for an outcome or for items from another thread, and the deadlines of a hub.

A native thread waits on a lock, a greenlet on the hub.
Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol, TypeVar

from greenlet import getcurrent


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
        """Its time has come. Called on the hub; must not raise."""


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
                expiring.expire()
            del self._ticks[heapq.heappop(self._order)]
        if self._order:
            self._wait_for(self._order[0])
        else:
            self._stop()


# --- greenlets of one hub that wait for outcomes from any thread
#
# A thread that settles a waiter appends it to a queue and wakes the hub, once for all outcomes that arrive until the
# hub looks. The hub then switches to each waiting greenlet.


class HubSignal:
    """Has `function` called on the hub, once for all signals sent until then. Made on the hub's thread.

    No signal is lost: `is_due` is cleared before the call, so a thread that finds it set has written whatever the call
    looks at before the call looks. Two threads may both find it clear; the second call then finds nothing new.
    """

    __slots__ = ("_async", "_function", "_loop", "_thread_id", "is_due")

    def __init__(self, hub: Any, function: Callable[[], None]) -> None:
        self.is_due = False
        self._function = function
        self._loop = hub.loop
        self._thread_id = get_ident()
        self._async = hub.loop.async_()
        self._async.start(self._call)

    def send(self) -> None:
        """Have the function called soon: on the hub's thread in this iteration of the loop. Any thread."""
        if self.is_due:
            return
        self.is_due = True
        if get_ident() == self._thread_id:
            self._loop.run_callback(self._call)
        else:
            self._async.send()

    def send_after_io(self) -> None:
        """As `send`, but not before the loop has looked at all sockets again. On the hub's thread."""
        self.is_due = True
        self._async.send()

    def close(self) -> None:
        """Signals that are sent later do nothing. On the hub's thread."""
        self.is_due = True
        self._async.stop()
        self._async.close()

    def _call(self) -> None:
        self.is_due = False
        self._function()


class Waits(Protocol):
    """`greenlet` is the one that waits; None if none does."""

    greenlet: Any


class HubWaiters:
    """The waiters of one hub. Made on the hub's thread."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.arrived: deque[Waits] = deque()
        self.signal = HubSignal(hub, self._deliver)
        self._thread_id = get_ident()

    def waiter(self) -> Waiter:
        """For a greenlet of the hub, not the hub itself; on any other thread for that thread."""
        return GreenletWaiter(self) if get_ident() == self._thread_id else ThreadWaiter()

    def current(self) -> Any:
        """The greenlet that calls."""
        return getcurrent()

    def wake(self, waits: Waits) -> None:
        """Have the hub switch to the greenlet that waits then. Any thread."""
        self.arrived.append(waits)
        if not self.signal.is_due:
            self.signal.send()

    def close(self) -> None:
        """Wake no greenlet from now on. On the hub's thread."""
        self.signal.close()

    def _deliver(self) -> None:
        """On the hub: switch to each greenlet whose outcome has arrived; it returns here when it waits again."""
        arrived = self.arrived
        try:
            # Not those that arrive meanwhile: sockets have their turn first.
            for _ in range(len(arrived)):
                greenlet = arrived.popleft().greenlet
                if greenlet is not None:
                    greenlet.switch()
        finally:
            if arrived:
                self.signal.send_after_io()


class GreenletWaiter:
    """The greenlet that calls `wait`. Only the hub's thread touches `greenlet`, which is None while nobody waits."""

    __slots__ = ("_waiters", "greenlet", "outcome")

    def __init__(self, waiters: HubWaiters) -> None:
        self._waiters = waiters
        self.greenlet: Any = None
        self.outcome: Any = None

    def settle(self, outcome: object) -> None:
        self.outcome = outcome
        waiters = self._waiters
        waiters.arrived.append(self)
        if not waiters.signal.is_due:
            waiters.signal.send()

    def wait(self, timeout_s: float | None = None) -> Any:
        hub = self._waiters.hub
        self.greenlet = getcurrent()
        try:
            if timeout_s is None:
                while self.outcome is None:
                    hub.switch()
            else:
                self._wait_until(hub, timeout_s)
        finally:
            # An outcome that arrives later must not wake a greenlet that has gone on to wait for something else.
            self.greenlet = None
        return self.outcome

    def _wait_until(self, hub: Any, timeout_s: float) -> None:
        timer = hub.loop.timer(timeout_s)
        try:
            timer.start(self.greenlet.switch)
            while self.outcome is None and timer.active:
                hub.switch()
        finally:
            timer.stop()
            timer.close()


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
