"""What follows from the costs of a request."""

from __future__ import annotations

import pytest

from bench.scaling import Ceiling, Costs


@pytest.mark.parametrize(
    ("cores", "engine_us", "rate", "busy", "times"),
    [
        (2, 20.0, 2e6 / 69, 0.58, 1.0),  # front ends and client have most of both cores: one engine is not what ends
        (8, 20.0, 8e6 / 69, 2.32, 2.0),
        (4, 20.0, 4e6 / 69, 1.16, 1.16),
        (2, 2500.0, 2e6 / 2549, 1.96, 1.96),  # what is around the execution costs little beside it
    ],
)
def test_what_a_second_engine_can_add(cores: int, engine_us: float, rate: float, busy: float, times: float) -> None:
    ceiling = Ceiling(cores, Costs(engine_us, 40.0), 9.0)
    assert ceiling.rate == pytest.approx(rate)
    assert ceiling.busy_engine == pytest.approx(busy, abs=0.005)
    assert ceiling.times(2) == pytest.approx(times, abs=0.005)
