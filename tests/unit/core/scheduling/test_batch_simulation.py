"""A batcher with a target, in simulated time, beside the best of the fixed settings."""

from __future__ import annotations

import functools
import itertools

import pytest

from tests.unit.core.scheduling.batch_simulator import TRACES, Machine, Outcome, simulate
from trident.core.scheduling.latency_target import BatchSetting

MS = 1_000_000
WINDOW_NS = 500 * MS
LARGEST = 64
DELAYS_MS = (0, 1, 5)
SIZES = (4, 16, 64)
# Each with its target in milliseconds and with the rates of its load: easy, and so high that it can only be survived.
ACCELERATOR = Machine(fixed_ms=4, item_ms=0.05)
TWO_ACCELERATORS = Machine(fixed_ms=4, item_ms=0.05, instances=2)
CORE = Machine(fixed_ms=0.3, item_ms=0.4)
CASES = [
    (ACCELERATOR, 25, (1500, 5500)),
    (TWO_ACCELERATORS, 25, (3000, 10000)),
    (CORE, 20, (700, 1500)),
]


def within(outcome: Outcome, target_ms: float) -> float:
    """The share of the windows, after the first second, whose 99th percentile is under the target."""
    windows = outcome.windows(WINDOW_NS)[2:]
    under = [sorted(window)[int(0.99 * (len(window) - 1))] <= target_ms * MS for window in windows]
    return sum(under) / len(under)


@functools.cache
def arrivals(name: str, rate: float) -> list[int]:
    return TRACES[name](rate, min(6, 20_000 / rate))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize(
    ("machine", "target_ms", "rate"),
    [(machine, target, rate) for machine, target, rates in CASES for rate in rates],
)
def test_as_many_answers_are_in_time_as_with_the_best_fixed_setting(
    machine: Machine, target_ms: float, rate: float, name: str
) -> None:
    trace = arrivals(name, rate)
    tuned = simulate(trace, machine, max_batch_size=LARGEST, target_ms=target_ms)
    assert len(tuned.served) == len(trace)
    fixed = [
        simulate(trace, machine, max_batch_size=LARGEST, setting=BatchSetting(delay * MS, size))
        for delay, size in itertools.product(DELAYS_MS, SIZES)
    ]
    assert tuned.good(target_ms) >= 0.9 * max(outcome.good(target_ms) for outcome in fixed)
    if max(within(outcome, target_ms) for outcome in fixed) >= 0.95:
        assert within(tuned, target_ms) >= 0.95


def test_executions_wait_for_the_delay_a_full_batch_or_the_instance() -> None:
    outcome = simulate([0, 1000 * MS], Machine(2, 0, noise=0), max_batch_size=4, setting=BatchSetting(3 * MS, 4))
    assert outcome.served == [(0, 5 * MS), (1000 * MS, 1005 * MS)]
    outcome = simulate([0, 0, 0], Machine(2, 0, noise=0), max_batch_size=2, setting=BatchSetting(0, 2))
    assert sorted(end for _, end in outcome.served) == [2 * MS, 4 * MS, 4 * MS]
