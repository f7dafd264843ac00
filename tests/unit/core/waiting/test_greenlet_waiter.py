from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import gevent

from tests.unit.core.waiting.hub_thread import LIMIT_S, run_on_hub, until
from trident.core.waiting.hub import GreenletWaiter, HubWaiters
from trident.core.waiting.waiting import ThreadWaiter


@contextmanager
def waiters_of(hub: Any) -> Iterator[HubWaiters]:
    waiters = HubWaiters(hub)
    try:
        yield waiters
    finally:
        waiters.close()


def test_each_greenlet_waits_for_its_own_outcome() -> None:
    def test(hub: Any) -> None:
        with waiters_of(hub) as waiters:
            made = [waiters.waiter() for _ in range(3)]
            waiting = [gevent.spawn(waiter.wait, LIMIT_S) for waiter in made]
            gevent.sleep(0)
            made[1].settle("second")
            assert waiting[1].get(timeout=LIMIT_S) == "second"
            assert [greenlet.ready() for greenlet in waiting] == [False, True, False]
            thread = threading.Thread(target=lambda: [made[0].settle("first"), made[2].settle("third")])
            thread.start()
            assert [greenlet.get(timeout=LIMIT_S) for greenlet in waiting] == ["first", "second", "third"]
            thread.join(LIMIT_S)

    run_on_hub(test)


def test_a_waiter_returns_an_outcome_that_arrived_before_the_wait() -> None:
    def test(hub: Any) -> None:
        with waiters_of(hub) as waiters:
            waiter = waiters.waiter()
            waiter.settle("outcome")
            assert waiter.wait() == "outcome"
            assert waiter.wait(0.0) == "outcome"

    run_on_hub(test)


def test_an_outcome_after_the_timeout_wakes_nobody() -> None:
    def test(hub: Any) -> None:
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

    run_on_hub(test)


def test_a_native_thread_gets_a_waiter_that_blocks_only_itself() -> None:
    def test(hub: Any) -> None:
        with waiters_of(hub) as waiters, ThreadPoolExecutor(1) as pool:
            assert isinstance(waiters.waiter(), GreenletWaiter)
            waiter = pool.submit(waiters.waiter).result(LIMIT_S)
            assert isinstance(waiter, ThreadWaiter)
            waiting = pool.submit(waiter.wait, LIMIT_S)
            waiter.settle("outcome")
            assert waiting.result(LIMIT_S) == "outcome"

    run_on_hub(test)


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


def test_an_outcome_that_arrives_as_the_hub_stops_looking_is_delivered() -> None:
    def test(hub: Any) -> None:
        with waiters_of(hub) as waiters:
            first, second = waiters.waiter(), waiters.waiter()
            waiters.arrived = LastMoment(lambda: second.settle("second"))
            waiting = [gevent.spawn(waiter.wait) for waiter in (first, second)]
            gevent.sleep(0)
            first.settle("first")
            assert [greenlet.get(timeout=LIMIT_S) for greenlet in waiting] == ["first", "second"]

    run_on_hub(test)


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


def looks_between_outcomes(in_groups: bool) -> list[int]:
    """For each of eight greenlets that wait for outcomes, how often the loop had looked at the sockets before."""
    looks: list[int] = []

    def test(hub: Any) -> None:
        with waiters_of(hub) as waiters:
            iterations = 0

            def look() -> None:
                nonlocal iterations
                iterations += 1

            watcher = hub.loop.check()
            watcher.priority = hub.loop.MAXPRI
            watcher.start(look)
            made = [waiters.waiter() for _ in range(8)]

            def wait(waiter: Any) -> None:
                waiter.wait(LIMIT_S)
                looks.append(iterations)

            greenlets = [gevent.spawn(wait, waiter) for waiter in made]
            gevent.sleep(0)
            waiters.in_groups = in_groups
            for waiter in made:
                waiter.settle("outcome")
            gevent.joinall(greenlets, timeout=LIMIT_S)
            assert not waiters.in_groups
            watcher.stop()
            watcher.close()

    run_on_hub(test)
    return [count - looks[0] for count in looks]


def test_outcomes_reach_their_greenlets_in_groups_with_a_look_at_the_sockets_between() -> None:
    assert looks_between_outcomes(in_groups=False) == [0] * 8
    grouped = looks_between_outcomes(in_groups=True)
    assert grouped[:4] == [0] * 4
    assert grouped[4] >= 1
    assert grouped[4:] == [grouped[4]] * 4
