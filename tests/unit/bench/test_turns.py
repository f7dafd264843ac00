"""bench/turns.py: the ratio of two servers and its interval."""

from __future__ import annotations

import random

import pytest

from bench.turns import Ratio


def test_the_ratio_is_the_median_of_the_pairs_ratios() -> None:
    assert Ratio.of([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]).median == 3.0


def test_the_interval_narrows_as_pairs_are_added() -> None:
    noise = random.Random(1)
    few, many = ([noise.uniform(0.8, 1.2) for _ in range(count)] for count in (10, 1000))
    narrow, wide = (Ratio.of(values, [1.0] * len(values)) for values in (many, few))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3
    assert narrow.low < 1.0 < narrow.high


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_interval_of_a_few_pairs_is_all_of_them(count: int) -> None:
    values = [1.0, 2.0, 3.0][:count]
    ratio = Ratio.of(values, [1.0] * count)
    assert (ratio.low, ratio.high) == (values[0], values[-1])


def test_ratio_refuses_turns_without_a_partner() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Ratio.of([1.0, 2.0], [1.0])
