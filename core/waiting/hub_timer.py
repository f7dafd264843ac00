"""Calls on the hub at a time, to some microseconds.

The timers of the hub's own loop end in whole milliseconds, which is too coarse for a queue delay of 500 µs.
Source: timerfd_create(2).
"""

from __future__ import annotations

import ctypes
import os
from time import monotonic_ns
from typing import Any

from core.waiting.greenlet_waiter import HubWaiters
from core.waiting.timer import Call

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
