"""Callers that wait for outcomes and items from other threads, and the deadlines of a hub."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest

from tests.unit.core.waiting.hub_thread import LIMIT_S, hub_test, run_on_hub, until
from trident.core.frontend.gevent_bridge import GreenletMailbox, HubSignal, HubWaiters
from trident.core.waiting import TICK_S, Deadlines, Mailbox, ThreadMailbox, ThreadWaiter


def test_a_thread_returns_an_outcome_that_arrived_before_the_wait() -> None:
    waiter = ThreadWaiter()
    waiter.settle("outcome")
    assert waiter.wait() == "outcome"
    assert waiter.wait(0.0) == "outcome"


@contextmanager
def waiters_of(hub: Any) -> Iterator[HubWaiters]:
    waiters = HubWaiters(hub)
    try:
        yield waiters
    finally:
        waiters.close()


@hub_test
def test_an_outcome_after_the_timeout_wakes_nobody(hub: Any) -> None:
    with waiters_of(hub) as waiters:
        late = waiters.waiter()
        assert late.wait(0.001) is None
        late.settle("late")
        other = waiters.waiter()
        waiting = gevent.spawn(other.wait)
        gevent.sleep(0.001)  # raises if the late outcome switches to this greenlet
        other.settle("outcome")
        # Outcomes arrive in order, so the late one has arrived as well.
        assert waiting.get(timeout=LIMIT_S) == "outcome"


class LastMoment(deque[Any]):
    """A queue that another thread appends to just after the hub has found it empty."""

    def __init__(self, add: Callable[[], None]) -> None:
        super().__init__()
        self._add: list[Callable[[], None]] = [add]

    def __len__(self) -> int:
        found = super().__len__()
        if found == 0 and self._add:
            thread = threading.Thread(target=self._add.pop())
            thread.start()
            thread.join(LIMIT_S)
        return found


@hub_test
def test_an_outcome_that_arrives_as_the_hub_stops_looking_is_delivered(hub: Any) -> None:
    with waiters_of(hub) as waiters:
        first, second = waiters.waiter(), waiters.waiter()
        waiters.arrived = LastMoment(lambda: second.settle("second"))
        waiting = [gevent.spawn(waiter.wait) for waiter in (first, second)]
        gevent.sleep(0)
        first.settle("first")
        assert [greenlet.get(timeout=LIMIT_S) for greenlet in waiting] == ["first", "second"]


def test_an_outcome_after_the_end_does_no_harm() -> None:
    made: list[Any] = []

    def test(hub: Any) -> None:
        with waiters_of(hub) as waiters:
            made.append(waiters.waiter())
            waiting = gevent.spawn(made[0].wait)
            until(lambda: made[0].greenlet is not None)
            waiting.kill()

    run_on_hub(test)
    made[0].settle("late")
    assert made[0].outcome == "late"


@hub_test
def test_no_signal_of_another_thread_is_lost(hub: Any) -> None:
    """Each signal follows a write: the last call must see the last write."""
    sent, seen = 0, 0

    def look() -> None:
        nonlocal seen
        seen = sent

    signal = HubSignal(hub, look)

    def send() -> None:
        nonlocal sent
        for _ in range(2000):
            sent += 1
            signal.send()

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: seen == 2000)
    thread.join(LIMIT_S)
    signal.close()


@hub_test
def test_signals_after_the_end_do_nothing(hub: Any) -> None:
    calls: list[int] = []
    signal = HubSignal(hub, lambda: calls.append(1))
    signal.close()
    signal.send()
    thread = threading.Thread(target=signal.send)
    thread.start()
    thread.join(LIMIT_S)
    gevent.sleep(0.001)
    assert calls == []


Test = Callable[[Mailbox[int]], None]


def on_thread(test: Test) -> None:
    test(ThreadMailbox())


def on_hub(test: Test) -> None:
    def run(hub: Any) -> None:
        waiters = HubWaiters(hub)
        try:
            test(GreenletMailbox(waiters))
        finally:
            waiters.close()

    run_on_hub(run)


both = pytest.mark.parametrize("on", [on_thread, on_hub])


@both
def test_no_item_is_lost_among_threads(on: Callable[[Test], None]) -> None:
    def test(mailbox: Mailbox[int]) -> None:
        def bring(first: int) -> None:
            for number in range(first, first + 1000):
                mailbox.put(number)

        threads = [threading.Thread(target=bring, args=(first,)) for first in (0, 1000, 2000)]
        for thread in threads:
            thread.start()
        found: list[int] = []
        while len(found) < 3000:
            assert mailbox.wait(LIMIT_S)
            found.append(mailbox.items.popleft())
        assert sorted(found) == list(range(3000))
        for thread in threads:
            thread.join(LIMIT_S)

    on(test)


@both
def test_a_wait_ends_without_an_item(on: Callable[[Test], None]) -> None:
    def test(mailbox: Mailbox[int]) -> None:
        assert not mailbox.wait(0.001)
        mailbox.put(1)
        assert mailbox.wait(0.001)
        assert mailbox.wait()

    on(test)


class Call:
    def __init__(self, ended: list[str], name: str) -> None:
        self._ended = ended
        self.name = name
        self.began = time.monotonic()
        self.lasted = 0.0

    def expire(self) -> None:
        self.lasted = time.monotonic() - self.began
        self._ended.append(self.name)


@hub_test
def test_what_is_due_expires_in_its_order_and_not_too_early(hub: Any) -> None:
    ended: list[str] = []
    deadlines = Deadlines(hub)
    calls = [Call(ended, name) for name in ("late", "soon", "now", "past")]
    for call, seconds in zip(calls, (0.2, 0.1, 0.0, -5.0), strict=True):
        deadlines.add(seconds, call)
    until(lambda: len(ended) == 4)
    assert ended == ["now", "past", "soon", "late"]
    assert calls[0].lasted >= 0.2
    assert calls[1].lasted >= 0.1
    deadlines.close()


@hub_test
def test_what_was_removed_does_not_expire(hub: Any) -> None:
    ended: list[str] = []
    deadlines = Deadlines(hub)
    calls = [Call(ended, str(number)) for number in range(3)]
    ticks = [deadlines.add(0.01, call) for call in calls]
    deadlines.remove(ticks[1], calls[1])
    deadlines.remove(ticks[1], calls[1])
    until(lambda: len(ended) == 2)
    assert ended == ["0", "2"]
    deadlines.remove(ticks[0], calls[0])
    deadlines.close()


@hub_test
def test_nothing_is_kept_of_many_calls_that_ended_in_time(hub: Any) -> None:
    ended: list[str] = []
    deadlines = Deadlines(hub)
    last = Call(ended, "last")
    for _ in range(20_000):
        call = Call(ended, "never")
        deadlines.remove(deadlines.add(60.0, call), call)
    assert sum(map(len, deadlines._ticks.values())) == 0
    assert len(deadlines._ticks) < 60 / TICK_S
    deadlines.add(0.0, last)
    until(lambda: ended == ["last"])
    # The ticks before a tick that is still used go with the next look.
    assert deadlines._ticks == {}
    assert deadlines._timer is None


@hub_test
def test_one_that_expires_may_remove_another_and_add_a_new_one(hub: Any) -> None:
    ended: list[str] = []
    deadlines = Deadlines(hub)
    other = Call(ended, "other")
    later = Call(ended, "later")

    class Busy(Call):
        def expire(self) -> None:
            deadlines.remove(tick, other)
            deadlines.add(0.0, later)
            super().expire()

    first = Busy(ended, "busy")
    tick = deadlines.add(0.01, first)
    deadlines._ticks[tick][other] = None
    until(lambda: "later" in ended)
    assert ended == ["busy", "later"]
    deadlines.close()


@hub_test
def test_a_deadline_is_near_in_its_last_moment(hub: Any) -> None:
    deadlines = Deadlines(hub)
    assert deadlines.is_near(deadlines.add(0.0, Call([], "now")))
    assert not deadlines.is_near(deadlines.add(60.0, Call([], "later")))
    deadlines.close()
