"""What follows from the costs of a request, and the figures of a run."""

from __future__ import annotations

import pytest

from bench.scaling import Ceiling, Costs, Measured, Samples, Shape, figures


def samples(*rates: float, engine_us: float = 20.0) -> Samples:
    made = Samples()
    for rate in rates:
        work = [rate * engine_us / 2e6] * 2
        made.take(int(rate), 1.0, work, [rate * 40 / 1e6], rate * 12 / 1e6)
    return made


def measured(rates: tuple[float, ...]) -> Measured:
    pair = {Shape(2, 2): samples(*rates, engine_us=25.0), Shape(2, 1): samples(1000, 2000)}
    return Measured("digits", Costs(20.0, 40.0), {Shape(1, 1): samples(1000)}, pair, pair)


def digits(text: str) -> list[str]:
    """The rows of a table that begin with the case."""
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith("| digits")]


def test_figures_of_a_run() -> None:
    heavy = {Shape(2, 1): samples(400, engine_us=2500.0), Shape(2, 2): samples(700, engine_us=2600.0)}
    parts = figures([measured((1800, 3800))], heavy, [4, 64], 0.1, None)
    assert digits(parts["costs"]) == ["| digits | 1 | 20.0 | 40.0 |"]
    assert digits(parts["bounds"]) == [
        "| digits | 4 | 50,000 | engines | 2 + 3 | 66,667 |",
        "| digits | 64 | 50,000 | engines | 22 + 43 | 1,066,667 |",
    ]
    assert digits(parts["limited"]) == ["| digits | 1 | 1,500 | 1 | |", "| digits | 2 | 2,800 | 1.85 | 1.80 to 1.90 |"]
    assert digits(parts["unlimited"]) == [
        "| digits | 1 | 1,500 | 1 | 20.0 | 40.0 | 12.0 | 0.11 |",
        "| digits | 2 | 2,800 | 1.85 | 25.0 | 40.0 | 12.0 | 0.22 |",
    ]
    assert "(20.0 + 40.0 + 12.0 µs)" in parts["ceiling"]
    assert "as many as one; measured were 1.85." in parts["ceiling"]
    (row,) = (" ".join(line.split()) for line in parts["heavy"].splitlines() if line.startswith("| 2 "))
    assert row.startswith("| 2 | 700 | 2,600 | 40.0 | 12.0 | 1.75 | 1.75 to 1.75 |")


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
