from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import gevent
import pytest

from tests.unit.core.waiting.hub_thread import run_on_hub, until
from trident.core.waiting.hub import HubTimer, HubWaiters

MILLISECOND_NS = 1_000_000
HOUR_NS = 3600 * 10**9


class Calls:
    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []

    def named(self, name: str) -> Callable[[], None]:
        return lambda: self.made.append((name, monotonic_ns()))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.made]


def with_a_timer(test: Callable[[HubTimer, Calls], None]) -> None:
    def run(hub: Any) -> None:
        waiters = HubWaiters(hub)
        timer = HubTimer(hub, waiters)
        try:
            test(timer, Calls())
        finally:
            timer.close()
            waiters.close()

    run_on_hub(run)


def test_calls_are_made_in_the_order_of_their_times_and_not_too_early() -> None:
    def test(timer: HubTimer, calls: Calls) -> None:
        now_ns = monotonic_ns()
        times = {"last": now_ns + 60 * MILLISECOND_NS, "first": now_ns + 20 * MILLISECOND_NS, "past": now_ns - 1}
        for name, at_ns in times.items():
            timer.call_at(at_ns, calls.named(name))
        until(lambda: len(calls.made) == 3)
        assert calls.names == ["past", "first", "last"]
        assert all(made_ns >= times[name] for name, made_ns in calls.made)

    with_a_timer(test)


def test_another_time_replaces_that_of_a_call() -> None:
    def test(timer: HubTimer, calls: Calls) -> None:
        call = calls.named("once")
        timer.call_at(monotonic_ns() + HOUR_NS, call)
        timer.call_at(monotonic_ns() + MILLISECOND_NS, call)
        until(lambda: calls.made)
        gevent.sleep(0.01)
        assert calls.names == ["once"]

    with_a_timer(test)


def test_a_call_may_ask_to_be_made_again() -> None:
    def test(timer: HubTimer, calls: Calls) -> None:
        def again() -> None:
            calls.named("again")()
            if len(calls.made) < 3:
                timer.call_at(monotonic_ns() + MILLISECOND_NS, again)

        timer.call_at(monotonic_ns() + MILLISECOND_NS, again)
        until(lambda: len(calls.made) == 3)

    with_a_timer(test)


def test_a_call_that_raises_does_not_take_the_others_with_it() -> None:
    def test(timer: HubTimer, calls: Calls) -> None:
        def fail() -> None:
            raise LookupError("a test")

        at_ns = monotonic_ns() + HOUR_NS
        timer.call_at(at_ns, fail)
        timer.call_at(at_ns, calls.named("after it"))
        timer._calls = dict.fromkeys(timer._calls, 0)  # both are due in the same look
        with pytest.raises(LookupError):
            timer._look()
        timer._look()
        assert calls.names == ["after it"]

    with_a_timer(test)


def test_a_timer_that_closes_makes_its_calls() -> None:
    def test(hub: Any) -> None:
        calls, waiters = Calls(), HubWaiters(hub)
        timer = HubTimer(hub, waiters)
        timer.call_at(monotonic_ns() + HOUR_NS, calls.named("later"))
        timer.close()
        waiters.close()
        assert calls.names == ["later"]

    run_on_hub(test)


def test_the_loop_rests_when_no_call_is_left() -> None:
    """A descriptor that stays readable would keep it awake."""

    def test(timer: HubTimer, calls: Calls) -> None:
        looks: list[int] = []
        look = timer._look
        timer._readable.stop()
        timer._readable.start(lambda: (looks.append(1), look()))
        timer.call_at(monotonic_ns() + MILLISECOND_NS, calls.named("a"))
        until(lambda: calls.made)
        before = len(looks)
        gevent.sleep(0.02)
        assert len(looks) == before

    with_a_timer(test)


def test_a_system_without_such_timers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(hub: Any) -> None:
        monkeypatch.setattr("ctypes.PyDLL", lambda name, use_errno: object())
        waiters = HubWaiters(hub)
        with pytest.raises(OSError, match="timerfd_create"):
            HubTimer(hub, waiters)
        waiters.close()

    run_on_hub(test)
