from __future__ import annotations

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.scheduling.latency_target import ExecutionCost, Window


def window_of(sizes: list[int], fixed_ns: int, item_ns: int) -> Window:
    window = Window(0)
    for size in sizes:
        window.note([pending_request(batch_size=size)], 0, fixed_ns + item_ns * size)
    return window


def test_the_line_through_the_executions_is_found() -> None:
    cost = ExecutionCost()
    cost.learn(window_of([1, 2, 5, 9], 4000, 50))
    assert (cost.fixed_ns, cost.item_ns) == (pytest.approx(4000), pytest.approx(50))
    assert cost.of(100) == pytest.approx(9000)


def test_executions_of_one_size_do_not_tell_what_an_item_costs() -> None:
    cost = ExecutionCost()
    cost.learn(window_of([4] * 10, 1000, 100))
    assert (cost.fixed_ns, cost.item_ns) == (1400, 0)


def test_neither_cost_is_ever_negative() -> None:
    cost = ExecutionCost()
    cost.learn(window_of([1, 10], 0, 7))
    assert (cost.fixed_ns, cost.item_ns) == (pytest.approx(0), pytest.approx(7))
    window = window_of([1], 900, 0)
    window.note([pending_request(batch_size=9)], 0, 10)
    cost.learn(window)
    assert cost.item_ns >= 0
    assert cost.fixed_ns >= 0


def test_a_changed_cost_is_learnt() -> None:
    cost = ExecutionCost()
    cost.learn(window_of([1, 2, 3] * 100, 1000, 100))
    for _ in range(20):
        cost.learn(window_of([1, 2, 3] * 100, 5000, 300))
    assert (cost.fixed_ns, cost.item_ns) == (pytest.approx(5000, rel=0.01), pytest.approx(300, rel=0.01))
