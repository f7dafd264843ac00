"""Greenlets of one hub that wait for outcomes from any thread.

A thread that settles a waiter appends it to a queue and wakes the hub, once for all outcomes that arrive until the hub
looks. The hub then switches to each waiting greenlet.
Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any, Protocol, TypeVar

from greenlet import getcurrent

from trident.core.waiting.waiting import Call, Mailbox, ThreadWaiter, Waiter


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


# The timers of the hub's own loop end in whole milliseconds, which is too coarse for a queue delay of 500 µs. Source:
# timerfd_create(2).


_READ = 1
_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
_SECOND_NS = 1_000_000_000
# A processor that sleeps takes 30 to 50 µs to wake up in a virtual machine. So the loop is woken that much earlier, and
# looks at the sockets again and again until the time has come.
_AWAKE_NS = 40_000


class HubTimer:
    """Implements Timer for the thread of `hub`, and is made there. Raises OSError on systems other than Linux."""

    def __init__(self, hub: Any, waiters: HubWaiters) -> None:
        """`waiters` are those that wait for the answers which the calls give."""
        # Not CDLL, whose calls give up the interpreter's lock: these calls take less than that.
        libc: Any = ctypes.PyDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            raise OSError("the system has no timerfd_create")
        self._descriptor: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._waiters = waiters
        self._set_time = libc.timerfd_settime
        # An itimerspec: seconds and nanoseconds of an interval, which stay 0, and of the time.
        self._time: Any = (ctypes.c_long * 4)()
        self._calls: dict[Call, int] = {}
        # From when on the descriptor is readable, 0 for never.
        self._wakes_ns = 0
        self._readable = hub.loop.io(self._descriptor, _READ)
        self._readable.start(self._look)

    def call_at(self, at_ns: int, function: Call) -> None:
        self._calls[function] = at_ns
        wakes_ns = at_ns - _AWAKE_NS
        if not self._wakes_ns or wakes_ns < self._wakes_ns:
            self._wake_at(wakes_ns)

    def note_rest(self) -> None:
        self._waiters.in_groups = True

    def _wake_at(self, wakes_ns: int) -> None:
        self._wakes_ns = wakes_ns
        self._time[2], self._time[3] = divmod(wakes_ns, _SECOND_NS)
        self._set_time(self._descriptor, _ABSOLUTE, self._time, None)

    def _look(self) -> None:
        """Make the calls that are due. The loop calls this again and again while the descriptor is readable."""
        calls = self._calls
        now_ns = monotonic_ns()
        due = [function for function, at_ns in calls.items() if at_ns <= now_ns]
        for function in due:
            # One that raises must not take the others with it: they are made by the next look.
            del calls[function]
            function()
        wakes_ns = min(calls.values()) - _AWAKE_NS if calls else 0
        if not calls or wakes_ns > now_ns:
            self._wake_at(wakes_ns)

    def close(self) -> None:
        """Make all calls now, and none from now on."""
        calls, self._calls = self._calls, {}
        for function in calls:
            function()
        self._readable.stop()
        self._readable.close()
        os.close(self._descriptor)


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
