"""bench/guard.py: what the pairs of a row decide."""

from __future__ import annotations

import random

import pytest

from bench.guard import LIMIT, Verdict
from bench.turns import Ratio

NOISE = 0.08
ENOUGH = 60


def _pairs(true_ratio: float, count: int, seed: int) -> Ratio:
    """Turns on a machine on which one turn differs from the next by 8 %, and some are disturbed much more."""
    noise = random.Random(seed)

    def rate(middle: float) -> float:
        return middle * noise.gauss(1, NOISE) * (0.5 if noise.random() < 0.03 else 1)

    return Ratio.of([rate(true_ratio) for _ in range(count)], [rate(1.0) for _ in range(count)])


@pytest.mark.parametrize(
    ("low", "median", "high", "verdict"),
    [
        (0.90, 0.92, LIMIT - 0.001, Verdict.SLOWER),
        (0.90, 0.92, LIMIT, Verdict.UNSURE),
        (LIMIT - 0.001, 1.00, 1.05, Verdict.UNSURE),
        (LIMIT, 0.96, 0.97, Verdict.OK),
        (1.10, 1.20, 1.30, Verdict.OK),
    ],
)
def test_only_an_interval_that_lies_below_the_limit_is_slower(
    low: float, median: float, high: float, verdict: Verdict
) -> None:
    assert Verdict.of(Ratio(median, low, high)) is verdict


def test_one_slower_figure_of_two_is_enough() -> None:
    fast, slow, wide = Ratio(1.0, 0.98, 1.02), Ratio(0.9, 0.88, 0.92), Ratio(1.0, 0.7, 1.4)
    assert Verdict.of(fast, slow) is Verdict.of(slow, wide) is Verdict.SLOWER
    assert Verdict.of(fast, wide) is Verdict.UNSURE


def test_the_same_speed_is_never_called_slower_in_spite_of_noise() -> None:
    verdicts = [Verdict.of(_pairs(1.0, ENOUGH, seed)) for seed in range(200)]
    assert Verdict.SLOWER not in verdicts
    assert verdicts.count(Verdict.OK) > 100


def test_a_tenth_slower_is_called_slower() -> None:
    verdicts = [Verdict.of(_pairs(0.88, ENOUGH, seed)) for seed in range(200)]
    assert verdicts.count(Verdict.SLOWER) > 190
    assert Verdict.OK not in verdicts


def test_exactly_the_limit_is_rarely_called_slower() -> None:
    verdicts = [Verdict.of(_pairs(LIMIT, ENOUGH, seed)) for seed in range(400)]
    assert verdicts.count(Verdict.SLOWER) < 0.04 * len(verdicts)
