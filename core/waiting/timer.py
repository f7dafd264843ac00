"""The timer of a thread that can make calls at a time without blocking, because it runs a loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

Call = Callable[[], None]


class Timer(Protocol):
    """Implemented by HubTimer (core/waiting/hub_timer.py). Only on the thread that it belongs to."""

    def call_at(self, at_ns: int, function: Call) -> None:
        """Call `function` once, at `at_ns` (monotonic) or as soon afterwards as the thread has time.

        Another time replaces that of a call which was not made yet.
        """

    def note_rest(self) -> None:
        """Note, before answers are given, that clients wait for them and send nothing meanwhile: the first answers
        should reach them while the thread still works on the others."""


_of_threads = threading.local()


def timer_of_thread() -> Timer | None:
    """The timer of the calling thread, if it has one."""
    timer: Timer | None = getattr(_of_threads, "timer", None)
    return timer


def set_timer_of_thread(timer: Timer | None) -> None:
    """Have `timer` be that of the calling thread, or none."""
    _of_threads.timer = timer
