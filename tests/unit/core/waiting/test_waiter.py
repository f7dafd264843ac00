from __future__ import annotations

import threading

from trident.core.waiting.waiting import ThreadWaiter

LIMIT_S = 30.0


def test_a_waiter_returns_an_outcome_that_arrived_before_the_wait() -> None:
    waiter = ThreadWaiter()
    waiter.settle("outcome")
    assert waiter.wait() == "outcome"
    assert waiter.wait(0.0) == "outcome"


def test_a_waiter_returns_the_outcome_of_another_thread() -> None:
    waiter = ThreadWaiter()
    thread = threading.Thread(target=waiter.settle, args=("outcome",))
    thread.start()
    assert waiter.wait(LIMIT_S) == "outcome"
    thread.join(LIMIT_S)


def test_a_waiter_that_gave_up_may_wait_again() -> None:
    waiter = ThreadWaiter()
    assert waiter.wait(0.0) is None
    assert waiter.wait(0.001) is None
    waiter.settle("outcome")
    assert waiter.wait() == "outcome"
