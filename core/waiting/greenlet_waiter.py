"""Greenlets of one hub that wait for outcomes from any thread.

A thread that settles a waiter appends it to a queue and wakes the hub, once for all outcomes that arrive until the hub
looks. The hub then switches to each waiting greenlet.
Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import Any, Protocol

from greenlet import getcurrent

from core.waiting.hub_signal import HubSignal
from core.waiting.waiter import ThreadWaiter, Waiter

# A group answers its clients before the next one is woken. Sending together is cheaper, so the groups are not smaller.
_GROUP = 4


class Waits(Protocol):
    """`greenlet` waits, None: nobody does."""

    greenlet: Any


class HubWaiters:
    """The waiters of one hub. Made on the hub's thread.

    `in_groups`: the outcomes that have arrived go to few greenlets at a time, and the hub looks at all sockets between.
    The clients of the first ones can then send what they send next, and its delays begin, while the others are
    answered. Set it only when the hub has nothing else to do. It ends with these outcomes.
    """

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.arrived: deque[Waits] = deque()
        self.signal = HubSignal(hub, self._deliver)
        self.in_groups = False
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
        """Wake nobody from now on. On the hub's thread."""
        self.signal.close()

    def _deliver(self) -> None:
        """On the hub: switch to each greenlet whose outcome has arrived; it returns here when it waits again."""
        arrived = self.arrived
        try:
            # Not those that arrive meanwhile: sockets have their turn first.
            count = len(arrived)
            if self.in_groups:
                count = min(count, _GROUP)
            for _ in range(count):
                greenlet = arrived.popleft().greenlet
                if greenlet is not None:
                    greenlet.switch()
        finally:
            if arrived:
                self.signal.send_after_io()
            else:
                self.in_groups = False


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
